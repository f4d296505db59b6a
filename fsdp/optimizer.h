// Optimizers on this rank's shards, by torch's fused CPU kernels in place. They see flat slices only and never touch
// padding. Weight decay applies to parameters with two or more extents only (not to biases and norms), as GPT-2 is
// trained.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "fsdp/reduce_scatter.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // gradient: one slice [shard_size] per trainable group; read only. learning_rate > 0 (std::invalid_argument
  // otherwise). Updates the shards and calls model.weights_changed().
  virtual void step(const ShardBuffers& gradient, double learning_rate) = 0;
};

// d = gradient + weight_decay·w; v = momentum·v + d (v = d in the first step); w -= lr·v. torch.optim.SGD's rule.
struct SgdOptions {
  double momentum = 0.0;
  double weight_decay = 0.0;
};
// Throws std::invalid_argument unless 0 ≤ momentum < 1 and weight_decay ≥ 0.
std::unique_ptr<Optimizer> make_sgd(ShardedModel& model, const SgdOptions& options);

// Decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101), torch.optim.AdamW's update rule and epsilon place.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};
// Throws std::invalid_argument unless 0 ≤ beta < 1 (both), epsilon > 0 and weight_decay ≥ 0.
std::unique_ptr<Optimizer> make_adamw(ShardedModel& model, const AdamWOptions& options);

}  // namespace ghostshard::fsdp
