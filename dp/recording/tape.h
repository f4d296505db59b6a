// One microbatch's book: per-unit squared norms, and whatever the clipped sum will need.
//
// Each trainable parameter has one entry. A matrix is *held* (its per-unit gradients [U,p,d] are formed at once) or
// *replayed* (the rows stay on the tape), as kernels::choose_recording decides within the memory for it; vectors are
// always held. One forward and one backward per tape: a second backward is refused (std::logic_error), because its
// texts would be counted as the same units. A head may keep its inputs alone, and its logit gradients are computed
// again (Recording::kRecompute). Only matrices planned as Recording::kTwoPass wait for a second forward and backward of
// the same microbatch, which the clipper opens and which must bring the very same rows: their bits are compared by
// fingerprint, because factors made for some rows bound nothing else. A parameter used a second time: a held entry
// takes the second use in exactly, the pair of one head and one embedding is exact through its cross term, anything
// else is refused by name (std::invalid_argument), never under-counted.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dp/recording/recomputed_head.h"
#include "dp/recording/recorder.h"
#include "fsdp/reduce_scatter.h"
#include "kernels/fingerprint.h"
#include "kernels/linear_norm.h"
#include "kernels/norm_parts.h"
#include "kernels/recording.h"

namespace ghostshard::dp {

// What held gradients may take, in one microbatch. They come from where activations come from, not from a range of
// their own: while backward goes on they take the place of those that it frees (fsdp/mapped_memory.h for the large
// ones, and fsdp/host_memory.h for programs). device: the model's, and that of everything a tape keeps.
class HoldMemory {
 public:
  explicit HoldMemory(int64_t capacity_bytes, at::Device device = at::kCPU);
  // float32 [sizes], counted. Always given: small vectors may exceed the capacity.
  at::Tensor take(at::IntArrayRef sizes);
  at::Device device() const { return device_; }
  int64_t bytes_left() const { return capacity_ > used_ ? capacity_ - used_ : 0; }
  void reset() { used_ = 0; }

 private:
  int64_t capacity_;
  at::Device device_;
  int64_t used_ = 0;
};

// By group index (fsdp::FlatGroup::index): the factors [U] of that group's contributions.
using GroupFactors = std::vector<at::Tensor>;

// How matrices are recorded. kAutomatic for users; the others so that tests can drive each way (kTwoPass refuses tied
// pairs).
enum class RecordingChoice { kAutomatic, kHold, kReplay, kTwoPass };

class Tape final : public Recorder {
 public:
  // units: U of this microbatch (0 allowed). planned: by parameter id, goes before choice. Both planned and the memory
  // must outlive the tape; the memory serves one tape at a time.
  Tape(int64_t units, HoldMemory& memory, RecordingChoice choice,
       std::span<const std::optional<kernels::Recording>> planned = {});

  void linear(const LinearUse& use, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments) override;
  void embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g,
                 const SegmentsPtr& segments) override;
  void layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g,
                  const SegmentsPtr& segments) override;
  void instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) override;
  // Where Recording::kRecompute is planned; heads that come whole all the same are replayed.
  bool takes_tiles(const fsdp::Parameter& weight) const override;
  void head_tile(const LinearUse& use, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                 const at::Tensor& g, const SegmentsPtr& segments) override;
  void looked_up(const fsdp::Parameter& table, const at::Tensor& ids, const SegmentsPtr& segments) override;

  int64_t units() const { return units_; }
  bool began_recording() const { return backward_ != -1 || was_watched_ || in_second_pass(); }
  // What a backward reports goes to the watcher and leaves nothing here, until none is named; for a backward before the
  // one that is recorded (dp/recording/attribution.h).
  void watch(RecorderPtr watcher);
  // What was recorded has become factors, and rows that come now are added with them.
  bool in_second_pass() const { return sums_ != nullptr; }
  // Frees what was recorded; nothing more is taken and nothing of it will be added.
  void give_up();

 private:
  friend class Clipper;  // norms and sums are private data: the clipper alone reads them

  struct Rows {
    at::Tensor a, g;  // oriented so that the gradient is gᵀa in the parameter's own layout
    SegmentsPtr segments;
  };
  struct Lookup {
    at::Tensor ids, g;
    SegmentsPtr segments;
  };
  struct Entry {
    const fsdp::Parameter* parameter = nullptr;
    kernels::NormParts parts;
    at::Tensor held;  // [U, shape...] or undefined
    std::vector<Rows> rows;
    std::vector<Lookup> lookups;
    std::optional<uint64_t> awaited;  // two pass: fingerprint of the rows that must come again
    std::optional<RecomputedHead> head;
  };

  // Of the two uses of a tied table.
  static void add_cross_term(const Lookup& lookup, const Rows& head, kernels::NormParts& parts);
  // Every report passes here: refuses a tape that was already added up and a second backward pass.
  Entry& entry(const fsdp::Parameter& parameter);
  void matrix(const fsdp::Parameter& weight, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments);
  std::optional<kernels::Recording> planned(const fsdp::Parameter& parameter) const;
  void vector(const fsdp::Parameter& parameter, const at::Tensor& g, const at::Tensor& factor,
              const SegmentsPtr& segments);
  void check_units(const fsdp::Parameter& parameter, const SegmentsPtr& segments) const;

  // Upper bound of each unit's squared norm over the parameters (shared_too: those that every model rank holds whole,
  // too), float64 [U]; +infinity where it is not finite.
  at::Tensor squared_norms(bool shared_too = true) const;
  // The same over the parameters of each group alone, [groups,U].
  at::Tensor squared_norms_by_group(int64_t groups, bool shared_too) const;
  // sums += sum over units of factors[u]·G_u, for every recorded parameter of the group. Their records are freed.
  void add_group(const GroupFactors& factors, const fsdp::FlatGroup& group, fsdp::GradientBuffers& sums);
  // The same for all that is left; closes the tape. std::logic_error where rows of a second pass are still awaited.
  void add_rest(const GroupFactors& factors, fsdp::GradientBuffers& sums);
  // Adds what the first pass recorded, frees it, and awaits the second, whose rows go into sums as they come. streamed:
  // the streamed groups of sums. They are added one after the other, each when nothing of it and of those
  // before it is awaited any more; then on_streamed hears of it. (Their buffers open with their first rows.)
  using OnStreamed = std::function<void(const fsdp::FlatGroup&)>;
  void begin_second_pass(GroupFactors factors, fsdp::GradientBuffers& sums,
                         std::deque<const fsdp::FlatGroup*> streamed = {}, OnStreamed on_streamed = nullptr);
  void send_streamed();
  bool awaits(const fsdp::FlatGroup& group) const;
  // Bytes by parameter id of what is recorded now, what several share counted once. bytes: as long as there are ids.
  void count_bytes(std::span<int64_t> bytes) const;
  void add_awaited(Entry& book, const at::Tensor& a, const at::Tensor& g, const kernels::Segments& segments);
  static void add_entry(Entry& book, const GroupFactors& factors, fsdp::GradientBuffers& sums);

  int64_t units_;
  HoldMemory& memory_;
  RecordingChoice choice_;
  std::span<const std::optional<kernels::Recording>> planned_;  // by parameter id
  std::map<uint32_t, Entry> entries_;                           // by parameter id: a fixed order of summation
  std::map<uint32_t, LookedUp> ahead_;                          // in forward, of tables whose head comes by tiles
  int backward_ = -1;                      // autograd's number of the backward pass this tape belongs to
  bool closed_ = false;                    // added to a sum
  fsdp::GradientBuffers* sums_ = nullptr;  // where the second pass goes, and with which factors
  GroupFactors factors_;
  std::deque<const fsdp::FlatGroup*> streamed_;
  OnStreamed on_streamed_;
  RecorderPtr watcher_;
  bool was_watched_ = false;
};

}  // namespace ghostshard::dp
