// The record of one microbatch: per-unit squared norms, and the rows and gradients that the clipped sum will need.
//
// Each trainable parameter has one entry. A matrix is *held* (its per-unit gradients [U,p,d] are formed at once) or
// *replayed* (the rows stay on the tape), as kernels::choose_recording decides within the memory for it; vectors are
// always held. A head under a softmax comes by tiles if it is planned as held, or keeps its inputs alone, and its logit
// gradients are computed again (Recording::kRecompute).
//
// A tape serves one forward and one backward: a second backward is refused (std::logic_error), because its texts would
// be counted as the same units. Only matrices planned as Recording::kTwoPass wait for a second forward and backward of
// the same microbatch, which the clipper begins. It must bring the very same rows: their bits are compared by
// fingerprint, because factors made for some rows bound no others.
//
// A parameter may be used a second time in two cases: a held entry takes the second use in exactly, and the pair of one
// head and one embedding is exact through its cross term. Any other second use is refused by name
// (std::invalid_argument), never under-counted.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "dp/recording/held_head.h"
#include "dp/recording/hold_memory.h"
#include "dp/recording/recomputed_head.h"
#include "dp/recording/recorder.h"
#include "dp/recording/replayed_head.h"
#include "fsdp/reduce_scatter.h"
#include "kernels/fingerprint.h"
#include "kernels/linear_norm.h"
#include "kernels/norm_parts.h"
#include "kernels/recording.h"

namespace ghostshard::dp {

// By group index (fsdp::FlatGroup::index): the clip factors [U] of that group's contributions.
using GroupFactors = std::vector<at::Tensor>;
// By parameter id: how a matrix is recorded; none: the tape chooses.
using RecordingPlan = std::vector<std::optional<kernels::Recording>>;

// How matrices are recorded. Users take kAutomatic; with the others tests drive each way (kTwoPass refuses tied pairs).
enum class RecordingChoice { kAutomatic, kHold, kReplay, kTwoPass };

class Tape final : public Recorder {
 public:
  // units: U of this microbatch (0 allowed). parameters: of the model. The memory serves one tape at a time. planned:
  // overrules choice; its owner may still change it in forward. model: that of all parameters that are reported, kept
  // for as long as the graph keeps the tape; null if its owner keeps it for longer.
  Tape(int64_t units, int64_t parameters, std::shared_ptr<HoldMemory> memory, RecordingChoice choice,
       std::shared_ptr<const RecordingPlan> planned, std::shared_ptr<const fsdp::GroupedParameters> model = nullptr);

  void require_open() const override;
  void linear(const LinearUse& use, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments) override;
  void embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g,
                 const SegmentsPtr& segments) override;
  void layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g,
                  const SegmentsPtr& segments) override;
  void instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) override;
  // As planned: kept for kHold, and for kReplay if norms can be taken by tiles; recomputed for kRecompute. A head that
  // comes whole all the same is held or replayed.
  std::optional<TileLogits> takes_tiles(const fsdp::Parameter& weight, const at::Tensor& a,
                                        const SegmentsPtr& segments) override;
  void head_tile(const LinearUse& use, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                 const at::Tensor& g, const SegmentsPtr& segments) override;
  void looked_up(const fsdp::Parameter& table, const at::Tensor& ids, const SegmentsPtr& segments) override;

  int64_t units() const { return units_; }
  // The microbatch is of nobody: its one unit is a placeholder, without a loss.
  void stand_for_nobody() { of_nobody_ = true; }
  bool of_nobody() const { return of_nobody_; }
  bool began_recording() const { return backward_ != -1 || was_watched_ || in_second_pass(); }
  // A second backward came and was refused. Autograd turns every C++ error into one of its own, so that callers above
  // it cannot catch a type: they ask here.
  bool refused_second_backward() const { return refused_second_backward_; }
  // Until watch(null), reports go to the watcher and leave nothing here. Only for a backward before the recorded one
  // (dp/recording/attribution.h); std::logic_error after it.
  void watch(RecorderPtr watcher);
  // The first pass has become factors, and rows that come now are added with them.
  bool in_second_pass() const { return sums_ != nullptr; }
  // Frees the records: none of them will be added, and no further report is taken.
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
    std::optional<HeldHead> held_head;
    std::optional<ReplayedHead> replayed_head;
    bool unused() const { return lookups.empty() && only_lookups(); }
    bool only_lookups() const {
      return !held.defined() && rows.empty() && !awaited && !head && !held_head && !replayed_head;
    }
  };

  // Adds the cross term of a tied table's two uses.
  static void add_cross_term(const Lookup& lookup, const Rows& head, kernels::NormParts& parts);
  // Every report passes here: refuses a tape that was already added up and a second backward pass.
  Entry& entry(const fsdp::Parameter& parameter);
  void matrix(const fsdp::Parameter& weight, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments);
  void held_tile(Entry& book, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                 const at::Tensor& g, const SegmentsPtr& segments);
  void replayed_tile(Entry& book, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles, int64_t tile,
                     const at::Tensor& g, const SegmentsPtr& segments);
  // A replayed head meets another use of its matrix as whole rows.
  static void stand_whole(Entry& book);
  std::optional<kernels::Recording> planned(const fsdp::Parameter& parameter) const;
  // How a matrix used for the first time is recorded: as planned, as chosen, or the fastest that the memory allows.
  kernels::Recording way_of(const fsdp::Parameter& weight, const at::Tensor& a, const at::Tensor& g,
                            const kernels::Segments& segments) const;
  void vector(const fsdp::Parameter& parameter, const at::Tensor& g, const at::Tensor& factor,
              const SegmentsPtr& segments);
  void check_units(const fsdp::Parameter& parameter, const SegmentsPtr& segments) const;

  // Upper bound of each unit's squared norm, float64 [U]; +infinity if it is not finite. shared_too: over all
  // parameters; without it, not over those that every model rank holds whole.
  at::Tensor squared_norms(bool shared_too = true) const;
  // The same over the parameters of each group alone, [groups,U].
  at::Tensor squared_norms_by_group(int64_t groups, bool shared_too) const;
  // sums += sum over units of factors[u]·G_u, for every recorded parameter of the group. Their records are freed.
  void add_group(const GroupFactors& factors, const fsdp::FlatGroup& group, fsdp::GradientBuffers& sums);
  // The same for all that is left; closes the tape. std::logic_error if rows of a second pass are still awaited.
  void add_rest(const GroupFactors& factors, fsdp::GradientBuffers& sums);
  // Adds the first pass's records, frees them, and awaits the second pass, whose rows go into sums as they come.
  // streamed: the streamed groups of sums, added one after the other: each as soon as no row of it or of those before
  // it is awaited, with a call of on_streamed. (A streamed group's buffer opens with its first rows.)
  using OnStreamed = std::function<void(const fsdp::FlatGroup&)>;
  void begin_second_pass(GroupFactors factors, fsdp::GradientBuffers& sums,
                         std::deque<const fsdp::FlatGroup*> streamed = {}, OnStreamed on_streamed = nullptr);
  void send_streamed();
  bool awaits(const fsdp::FlatGroup& group) const;
  // Bytes recorded now, by parameter id; memory that several share counts once. bytes: one element for each id.
  void count_bytes(std::span<int64_t> bytes) const;
  void add_awaited(Entry& book, const at::Tensor& a, const at::Tensor& g, const kernels::Segments& segments);
  static void add_entry(Entry& book, const GroupFactors& factors, fsdp::GradientBuffers& sums);

  int64_t units_;
  int64_t parameters_;  // of the model
  // Autograd's graph keeps the tape, and may outlive everybody else: what it refers to while it is open is its own.
  std::shared_ptr<HoldMemory> memory_;
  RecordingChoice choice_;
  std::shared_ptr<const RecordingPlan> planned_;
  std::shared_ptr<const fsdp::GroupedParameters> model_;
  std::map<uint32_t, Entry> entries_;      // by parameter id: a fixed order of summation
  kernels::NormParts parts_;               // of all parameters by id, from the first report on; an entry's are views
  std::map<uint32_t, LookedUp> ahead_;     // lookups in tables whose head will come by tiles that are recomputed
  std::set<uint32_t> with_tiles_;          // heads that were told to keep their tiles, in the pass at hand
  std::set<uint32_t> tables_;              // matrices that were looked up
  int backward_ = -1;                      // autograd's number of the backward pass this tape belongs to
  bool closed_ = false;                    // added to a sum
  fsdp::GradientBuffers* sums_ = nullptr;  // those that the second pass adds to, with factors_
  GroupFactors factors_;
  std::deque<const fsdp::FlatGroup*> streamed_;
  OnStreamed on_streamed_;
  RecorderPtr watcher_;
  bool was_watched_ = false;
  bool of_nobody_ = false;
  bool refused_second_backward_ = false;
};

}  // namespace ghostshard::dp
