// One optimizer of several, each with parameters and a learning rate of its own: no decay for norms, Muon for matrices,
// a slower embedding.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/optimizer.h"

namespace ghostshard::fsdp {

struct OptimizerGroup {
  std::unique_ptr<Optimizer> optimizer;  // made for `parameters` of the model
  Chosen parameters;                     // must go on to say the same
  double rate = 1.0;                     // its learning rate is that of the step, times this; > 0
};

// A step is a step of each, in order, and computes for each parameter the bits that its group's optimizer alone would.
// rule(): their rules joined by "+" ("adamw+muon"); states are kept under the names that the optimizers give them.
// Throws std::invalid_argument unless every trainable parameter belongs to exactly one group (naming it), every rate is
// finite and > 0, and there is a group.
std::unique_ptr<Optimizer> join_optimizers(const ShardedModel& model, std::vector<OptimizerGroup> groups);

}  // namespace ghostshard::fsdp
