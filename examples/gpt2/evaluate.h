// The loss on texts that were declared public.
#pragma once

#include "examples/gpt2/dataset.h"
#include "examples/gpt2/model.h"

namespace ghostshard::gpt2 {

struct Evaluation {
  double loss = 0;            // mean over tokens
  double standard_error = 0;  // of that mean, over draws of texts
};

// A collective: each rank takes its share, every rank gets the result.
Evaluation evaluate(Gpt2& model, const Dataset& texts, int64_t microbatch);

}  // namespace ghostshard::gpt2
