// Parameters of a model in flat, sharded, preallocated memory (fully sharded data parallel, ZeRO stage 3).
//
// A *block* (a transformer layer, an embedding) is gathered and released as a whole. Its parameters lie in up to two
// flat groups, trainable and frozen, each with a ShardPlan. Every rank keeps its shard of each group, the master
// weights: float32, or bfloat16 if it is told how to round them (fsdp/weight_rounding.h). The whole
// group exists only while the block is gathered, in a buffer allocated once: blocks with Residency::kRegather share two
// buffers in turn (their index among such blocks, mod 2); a block with Residency::kKeep owns a buffer and is gathered
// once per weight version.
//
// With one rank the shard itself is the gathered buffer and nothing is copied. The rules of acquiring are the same, so
// that a program that runs on one rank runs on many. If the compute dtype is not the shards', each shard is
// rounded once per weight version into a slice of that dtype; ranks exchange these slices (half the bytes), and
// Parameter::value() shows their values. With a gather code (fsdp/gather_code.h) ranks exchange codes, and
// Parameter::value() shows the codes' values.
//
// Parameters are views of these buffers and never move; autograd must save the Parameter, not its value(). All methods
// are called from one thread, in the same order on every rank.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/gather_code.h"
#include "fsdp/parameters.h"
#include "fsdp/weight_rounding.h"

namespace ghostshard::fsdp {

class BlockBuffers;
struct BlockPassage;

class ShardedModel final : public GroupedParameters {
 public:
  // Parameters that name no granule have whole rows (last extent) if that leaves padding under 3 %, else single
  // elements. Throws std::invalid_argument for a name used twice, a shape without elements, a cut that leaves a
  // remainder, a granule that the shape does not have, or a compute dtype that is neither float32 nor bfloat16; and for
  // a code on a mesh with a model axis, whose parts of a parameter begin other stretches than the whole does. With a
  // code a parameter's granule is the least common multiple of its own and a stretch. rounding: master weights are
  // bfloat16, which saves memory only if layers compute in it too: std::invalid_argument for another compute dtype.
  ShardedModel(Mesh& mesh, std::vector<BlockSpec> blocks, at::ScalarType compute_dtype = at::kFloat,
               std::shared_ptr<const GatherCode> code = nullptr,
               std::shared_ptr<const WeightRounding> rounding = nullptr);
  ~ShardedModel() override;

  at::ScalarType compute_dtype() const { return compute_dtype_; }
  at::ScalarType master_dtype() const { return rounding_ ? at::kBFloat16 : at::kFloat; }
  const GatherCode* gather_code() const { return code_.get(); }  // null: weights travel as they are

  // Starts gathering a block into its buffer unless it is there or under way. The buffer's owner must have been
  // released (std::logic_error naming both).
  void prefetch(int64_t block);
  // Waits until the block is gathered (starting it if need be); leases nest and count.
  void acquire(int64_t block);
  // std::logic_error if the block is not leased.
  void release(int64_t block);
  // True if the block's buffer holds it, whole and up to date.
  bool gathered(int64_t block) const;
  // Takes every lease back, after an exception that unwound past their holders. Leases that still live then release
  // nothing.
  void reset_leases();
  // Waits for the gathers that prefetch() started, because shards must not change while they are being sent.
  void wait_for_gathers();
  // How many gathers were issued so far, one per group. For tests and benches.
  int64_t gathers() const;

  // Copies this rank's part of a whole tensor into its shards, rounded to the nearest if they are bfloat16. Every rank
  // calls it with the same values.
  // std::invalid_argument unless the shape is the parameter's.
  void set_parameter(const Parameter& parameter, const at::Tensor& whole);
  // The whole tensor of master weights, as float32, on every rank, as a copy in host memory. A collective: every rank
  // must call it for the same parameter.
  at::Tensor whole_parameter(const Parameter& parameter);
  // Lets `change` change the master weights of a range in group.owned(), as float32 [n], in place: change(values,
  // first) has the elements first … first + n − 1 of the range. They are the shard itself, all at once, or pieces of
  // kPiece elements that are rounded afterwards by the bits of this step, from 1, of the range's optimizer.
  static constexpr int64_t kPiece = int64_t{1} << 18;
  using ChangeWeights = std::function<void(const at::Tensor& values, int64_t first)>;
  void update_weights(const FlatGroup& group, const OwnedRange& range, int64_t step, const ChangeWeights& change);
  // Call it after shards were changed: gathered blocks are then out of date. (set_parameter and optimizers call it, and
  // call wait_for_gathers() before they change anything.)
  void weights_changed();

 private:
  at::Tensor whole_part(const Parameter& parameter);  // this model rank's part, gathered over the shard axis; a copy
  at::Tensor value_of(const Parameter& parameter) const override;  // a view of the gathered buffer
  friend class Lease;
  friend struct BlockPassage;
  at::ScalarType compute_dtype_;
  std::shared_ptr<const GatherCode> code_;
  std::shared_ptr<const WeightRounding> rounding_;
  std::shared_ptr<BlockBuffers> buffers_;  // a lease that outlives the model holds a weak reference
};

// The parameters of a ShardedModel, and which rank owns which, without memory: to plan with. Throws as it does.
class ModelLayout final : public GroupedParameters {
 public:
  ModelLayout(Mesh& mesh, std::vector<BlockSpec> blocks, const GatherCode* code = nullptr);
  int64_t padding() const;  // elements of all ranks' shards that belong to no parameter

 private:
  at::Tensor value_of(const Parameter& parameter) const override;  // std::logic_error
};

// Keeps a block gathered while it lives.
class Lease {
 public:
  Lease(ShardedModel& model, int64_t block);
  ~Lease() { release(); }
  Lease(Lease&& other) noexcept = default;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Lease& operator=(Lease&&) = delete;

 private:
  void release() noexcept;
  std::weak_ptr<BlockBuffers> buffers_;  // empty after a move
  int64_t block_ = 0;
  uint64_t epoch_ = 0;
};

// Returns body(x), with the block gathered in forward and in backward: backward gathers the block again before body's
// operations run and releases it after them. Prefetches the following block in forward (next_forward) and the preceding
// one in backward (next_backward); -1 for none.
//
// A block runs without recording if it has no trainable parameters and x needs no gradient. If grad mode is on and the
// block is trainable, body sees an input that requires grad. An input of integers (token ids) cannot require grad; body
// itself must then anchor its operations in the graph. After an exception in body or in backward no lease is left: a
// lease of backward ends with its graph, or at once by reset_leases(). If the input of a block needs no gradient,
// backward releases the block only when the whole backward ends.
//
// With Activations::kRecompute (arXiv:1604.06174) forward keeps only x and y; backward runs body once more, now
// recording, and then goes through it at once. Body must compute the same again (no coins). It is kept until then, so
// everything that it captures by reference must live as long. Backward can run once (std::logic_error). A block whose
// input is integers stores its activations as with kStore. Gradients are the same bits either way.
enum class Activations { kStore, kRecompute };
at::Tensor run_block(ShardedModel& model, int64_t block, int64_t next_forward, int64_t next_backward,
                     const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& body,
                     Activations activations = Activations::kStore);

}  // namespace ghostshard::fsdp
