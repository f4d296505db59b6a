// Optimizers on this rank's shards, by torch's fused kernels in place. They see flat slices only and never touch
// padding. Weight decay applies to parameters with two or more extents only (not to biases and norms), as GPT-2 is
// trained.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/reduce_scatter.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

// What a checkpoint keeps of an optimizer (fsdp/checkpoint.h): its rule's name, how many steps it has taken, and its
// flat slices, laid out like the model's shards.
class OptimizerState {
 public:
  struct Slices {
    std::string name;       // "first_moment"
    ShardBuffers* buffers;  // lives as long as the optimizer
  };
  virtual ~OptimizerState() = default;
  virtual std::string rule() const = 0;  // "sgd", "adamw"
  virtual int64_t steps() const = 0;
  virtual void set_steps(int64_t steps) = 0;  // std::invalid_argument unless >= 0
  virtual std::vector<Slices> slices() = 0;
};

// Where an optimizer's own slices are, and its rule is computed.
//   kWithModel  on the model's device
//   kHost       in host memory: a step brings gradient and weights there in pieces and weights back (12 bytes an
//               element, while the piece before is computed), and the device keeps no moments (8 bytes an element with
//               AdamW). The same as kWithModel for a model that is on the CPU.
enum class StatesAt { kWithModel, kHost };

class Optimizer : public OptimizerState {
 public:
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
std::unique_ptr<Optimizer> make_sgd(ShardedModel& model, const SgdOptions& options,
                                    StatesAt states = StatesAt::kWithModel);

// Decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101), torch.optim.AdamW's update rule and epsilon place.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};
// Throws std::invalid_argument unless 0 ≤ beta < 1 (both), epsilon > 0 and weight_decay ≥ 0.
std::unique_ptr<Optimizer> make_adamw(ShardedModel& model, const AdamWOptions& options,
                                      StatesAt states = StatesAt::kWithModel);

}  // namespace ghostshard::fsdp
