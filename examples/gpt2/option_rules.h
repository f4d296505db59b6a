// What the values of the command line must be, beside and between each other.
#pragma once

#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

// std::invalid_argument with one sentence for the first rule that the options break.
void check_options(const Options& options);

}  // namespace ghostshard::gpt2
