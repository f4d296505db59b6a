// How master weights are kept in bfloat16, with nothing beside them, instead of in float32. Whoever can round at random
// implements it; fsdp stores the weights.
//
// Optimizers compute in float32: weights are widened, changed and rounded again, piece by piece
// (ShardedModel::update_weights). What ranks send of such a shard is the shard itself.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::fsdp {

class WeightRounding {
 public:
  virtual ~WeightRounding() = default;
  // values float32 [n], stored bfloat16 [n], on the model's device: the elements first, first + 1, and so on, of the
  // whole parameter of this id after its optimizer's step number `step`, from 1. What is stored must depend on nothing
  // else, or ranks and resumed runs differ.
  virtual void round(const at::Tensor& values, uint32_t parameter, int64_t step, int64_t first,
                     const at::Tensor& stored) const = 0;
};

}  // namespace ghostshard::fsdp
