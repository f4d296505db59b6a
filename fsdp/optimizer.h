// Optimizers on this rank's shards, in place, by torch's fused kernels. They see only flat slices and never touch
// padding. Weight decay applies only to parameters with two or more extents (not to biases and norms), as in the
// training of GPT-2.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/reduce_scatter.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

// The state of an optimizer that a checkpoint keeps (fsdp/checkpoint.h): its rule's name, how many steps it has taken,
// and its flat slices, laid out like the model's shards.
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

// Where an optimizer's own slices are, and where its rule is computed.
//   kWithModel  on the model's device
//   kHost       in host memory: a step copies gradient and weights to the host in pieces and weights back (12 bytes an
//               element, while the piece before is computed), and the device keeps no moments (8 bytes an element with
//               AdamW). The same as kWithModel if the model is on the CPU.
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

// Decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101), with the update rule of torch.optim.AdamW and epsilon
// in its place there.
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
