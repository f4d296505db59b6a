// samples.jsonl of a run: what the model makes of a public prompt while it is trained. A text follows from released
// gradients alone.
#pragma once

#include <optional>
#include <vector>

#include "dp/run/course.h"
#include "dp/run/metrics.h"
#include "examples/gpt2/generate.h"
#include "examples/gpt2/setup.h"

namespace ghostshard::gpt2 {

class Samples {
 public:
  // Takes the lines of steps that were lost out of the file. std::invalid_argument for a prompt that the model cannot
  // take. References must outlive it. Without --sample-tokens it does nothing.
  Samples(const Options& options, const Inputs& in, Gpt2& model, const dp::Course& course);
  // Writes {"step", "prompt", "tokens"} on rank 0 if a sample is due. A collective.
  void after(int64_t steps_done);

 private:
  Gpt2& model_;
  GenerationOptions how_;
  std::vector<int64_t> prompt_;
  int64_t every_;
  int64_t last_step_;
  int64_t written_ = -1;
  std::optional<dp::MetricsFile> file_;  // rank 0
};

}  // namespace ghostshard::gpt2
