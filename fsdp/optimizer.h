// Optimizers on this rank's shards, in place. They see the elements that this rank owns and never touch padding. SGD
// and AdamW use torch's fused kernels. Weight decay applies only to parameters with two or more extents (not to biases
// and norms), as in the training of GPT-2.
//
// Each takes `chosen`: the parameters that it changes and has states for, among the trainable ones; none: all of them.
// fsdp/optimizer_groups.h makes one optimizer of several.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/reduce_scatter.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::fsdp {

// Numbers first, first + 1, and so on, of one kind, of a parameter.
struct StatePiece {
  std::string kind;
  const Parameter* parameter;
  int64_t first;
  at::Tensor values;  // float32, flat, a view
};
// How many numbers of a kind belong to a parameter.
struct StateRow {
  std::string kind;
  const Parameter* parameter;
  int64_t numbers;
};

// The state of an optimizer that a checkpoint keeps (fsdp/checkpoint.h): its rule's name, how many steps it has taken,
// and, for each kind of state, one number for each element of the parameters that have it. How an optimizer stores
// these numbers is its own affair: here they are float32, by the element of the parameter. States that are not by the
// element are rows of numbers, of which each rank holds some pieces.
class OptimizerState {
 public:
  virtual ~OptimizerState() = default;
  virtual std::string rule() const = 0;  // "sgd", "adamw"
  virtual int64_t steps() const = 0;
  virtual void set_steps(int64_t steps) = 0;           // std::invalid_argument unless >= 0
  virtual std::vector<std::string> kinds() const = 0;  // "first_moment"
  virtual bool keeps(const std::string& kind, const Parameter& parameter) const = 0;
  // float32 [range.count], a view or a copy: of a range in group.owned() whose parameter keeps this kind.
  virtual at::Tensor read(const std::string& kind, const FlatGroup& group, const OwnedRange& range) = 0;
  virtual void write(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
                     const at::Tensor& values) = 0;
  // The same on every rank; their kinds are none of kinds().
  virtual std::vector<StateRow> rows() const { return {}; }
  // This rank's, to read and to write. The ranks of the shard axis together hold every number exactly once, and so do
  // those of every replica.
  virtual std::vector<StatePiece> pieces() { return {}; }
  virtual int64_t state_bytes() const = 0;  // that this rank's states take
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
  // otherwise). Updates the shards and calls model.weights_changed(). Rules that need whole matrices communicate: every
  // rank calls it for the same step.
  virtual void step(const ShardBuffers& gradient, double learning_rate) = 0;
  // Every element of the gradients to come is off by an independent error of this variance, a public number; 0: none
  // that is known. Rules that make no use of it ignore it. Before the first step, and before states are written
  // (std::logic_error). std::invalid_argument unless finite and >= 0.
  virtual void set_error_variance(double variance);
};

// d = gradient + weight_decay·w; v = momentum·v + d (v = d in the first step); w -= lr·v. torch.optim.SGD's rule.
struct SgdOptions {
  double momentum = 0.0;
  double weight_decay = 0.0;
};
// Throws std::invalid_argument unless 0 ≤ momentum < 1 and weight_decay ≥ 0.
std::unique_ptr<Optimizer> make_sgd(ShardedModel& model, const SgdOptions& options,
                                    StatesAt states = StatesAt::kWithModel, const Chosen& chosen = nullptr);

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
                                      StatesAt states = StatesAt::kWithModel, const Chosen& chosen = nullptr);

// Muon (Jordan et al. 2024; arXiv:2502.16982): a matrix moves along its momentum with all singular values made about
// equal. Vectors, and matrices that are not chosen, go by AdamW at the same learning rate: a matrix's step is scaled to
// the root mean square of AdamW's steps, 0.2 (arXiv:2502.16982, section 2.2).
//
//   v = momentum·v + (1 − momentum)·g;  u = momentum·v + (1 − momentum)·g (nesterov) or v
//   w = (1 − lr·weight_decay)·w − lr·0.2·sqrt(max(p, d))·orthogonalised(u)
//
// The momentum is sharded like the weights. Once a step every matrix travels to one rank, is orthogonalised there and
// travels back (fsdp/optimizer/matrix_exchange.h): at most 8 bytes an element sent, whatever the number of
// microbatches.
//
// Errors of a known variance F in the gradients (set_error_variance) give u errors of the variance
//
//   e² = F·(1−momentum)²·((1+momentum)² + momentum⁴·(1 − momentum^(2(t−1)))/(1 − momentum²))   (nesterov, step t)
//
// in every element, and errors alone give it singular values of up to e·(√p + √d + 2), but for one matrix in eight at
// the most (Davidson and Szarek 2001, theorem 2.13), which would become as long as the signal's.
// MuonErrors::kDrop leaves out what lies below that edge and takes U·Vᵀ of the rest. There errors still turn the
// directions: to the leading order the mean of U·Vᵀ has in the place of the i-th singular value 1 the number 1 −
// e²·b_i,
//
//   b_i = Σ_{j≠i} 1/(s_i + s_j)² + |d − p|/(2·s_i²),   s_j the singular values, min(p, d) of them,
//
// because two directions of one side are turned by the angle of tangent (E_ij − E_ji)/(s_i + s_j), and one towards each
// of the |d − p| others by that of tangent E/s_i. kCorrect multiplies by 1 + e²·b_i, at most 2. (By
// its abstract arXiv:2605.12994 takes the leading order of such a bias out too, of the map that Newton and Schulz
// compute; this derivation is our own, and so is the formula.)
enum class MuonErrors { kKeep, kDrop, kCorrect };

struct MuonOptions {
  // A matrix whose equal pieces along one extent are matrices of their own, as fused queries, keys and values are (3 of
  // extent 0 or 1), or each of their heads.
  struct Pieces {
    int64_t extent = 0;
    int64_t count = 1;
  };
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.0;
  MuonErrors errors = MuonErrors::kKeep;
  AdamWOptions adamw;  // for the other parameters, with a weight decay of its own
  // The matrices, among the chosen parameters of two extents; none: all of them. Embeddings and the head, whose rows
  // are tokens', are better left to AdamW.
  Chosen matrices;
  // None: as the model axis cuts them, by their sections (fsdp/model_split.h).
  std::function<Pieces(const Parameter&)> pieces;
};
// Throws std::invalid_argument unless 0 ≤ momentum < 1 and weight_decay ≥ 0, and naming the parameter
// for pieces that leave a remainder and for matrices that the model axis cuts. step() is a collective.
std::unique_ptr<Optimizer> make_muon(ShardedModel& model, const MuonOptions& options, const Chosen& chosen = nullptr);

// The most that a step of Muon, or of another optimizer that brings matrices together (fsdp/shampoo.h), takes on any
// rank beside its states: messages, matrices and results, and what is made of the largest of them. rows: of a part of a
// matrix; none: whole matrices.
int64_t matrix_step_bytes(const GroupedParameters& model, const Chosen& matrices,
                          std::optional<int64_t> rows = std::nullopt);

}  // namespace ghostshard::fsdp
