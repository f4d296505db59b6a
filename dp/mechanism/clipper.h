// Per-unit clipping, then the sum of c_u·g_u. Flat: c_u = min(1, C/‖g_u‖) over all trainable parameters. Per layer
// (arXiv:1710.06963 section 3.2, arXiv:2212.01539): each of the K layers, that is, each group of trainable parameters
// that is gathered together (a transformer block, an embedding), has a factor of its own, min(1, C/(√K·‖g_u of that
// layer‖)). K is a public number.
//
// Automatic (AUTO-S, arXiv:2206.07136): c_u = C/(‖g_u‖ + 0.01), whatever the norm.
//
// Each unit obeys the bound ‖c_u·g_u as added‖ ≤ C; per layer because the squares of K parts of at most C/√K add up to
// at most C². Norms are upper bounds (kernels/norm_parts.h); factors are rounded towards zero and shrunk by 2^-22 for
// the rounding of the product. A unit whose norm is not finite contributes exactly zero (per layer: in that layer;
// kernels/clip_factors.h).
//
// If layers are cut over the model axis, the norm of a unit is all-reduced over it: each rank sends the bounds of the
// parameters that only it holds, and model rank 0 also those of the parameters that all of them hold. A sum of bounds
// is a bound (its float64 rounding, M·2^-53 for M ranks, is far inside the 2^-22), and all ranks get the same bits,
// hence the same factors.
//
// One error is left, the rounding of the float32 sum over units: removing a unit may also turn every rounding of the
// others. kernels/scaled_sum.h keeps large rows that cancel out of the common sum; DpPlan::rounding_slack bounds what
// is left, and docs/guarantee.md derives it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/mechanism/clipped_sum.h"
#include "dp/mechanism/gaussian.h"
#include "dp/recording/tape.h"

namespace ghostshard::dp {

enum class Clipping { kFlat, kPerLayer, kAutomatic };
// A sentence for ledgers and reports.
std::string to_string(Clipping clipping);

struct ClipperOptions {
  RecordingChoice recording = RecordingChoice::kAutomatic;
  int64_t hold_memory_bytes = int64_t{1} << 30;  // for kAutomatic
  // From a step plan (dp/planning/step_plan.h), by parameter id, for matrices. Parameters without an entry: as
  // `recording` says.
  RecordingPlan planned_recording = {};
  // By group index: contributions are reduced with every microbatch; their sum never stands whole on a rank.
  std::vector<bool> streamed = {};
};

class Clipper {
 public:
  ~Clipper();
  Clipper(Clipper&&) noexcept = default;

  // Starts a logical batch. std::logic_error unless the previous one was consumed (buffers are allocated once), and if
  // any group is streamed.
  ClippedSum begin();
  // The same for any plan: mechanism.release() of this sum must then be called with the same step. If groups are
  // streamed, the first add() writes the ledger and adds the noise before anything leaves.
  ClippedSum begin(GaussianMechanism& mechanism, const StepId& step);
  // From the next microbatch on, in place of the options' planned_recording. The same on all ranks.
  void plan_recording(RecordingPlan planned);
  bool takes_two_passes() const { return two_pass_; }
  // The recorder for one microbatch of `units` units, for one backward pass. The previous one must have been added or
  // dropped (std::logic_error): held gradients share one memory. It takes nothing more after the clipper's end.
  // planned: overrules the options' planned_recording. model: as Tape's.
  std::shared_ptr<Tape> record(int64_t units);
  std::shared_ptr<Tape> record(int64_t units, std::shared_ptr<const RecordingPlan> planned,
                               std::shared_ptr<const fsdp::GroupedParameters> model = nullptr);
  // After backward. False if no matrix is planned as Recording::kTwoPass; then nothing happens. True: the same
  // microbatch must go forward and backward once more with the same tape before add(). The first pass's records are
  // turned into factors, added and freed; so until that add() the sum is unfinished, and if the second pass fails it
  // can never be released (its units could otherwise be added twice). If groups are streamed, this call is a
  // collective, and so is the second backward: groups leave one after the other as their rows come, the last first.
  bool second_pass(ClippedSum& sum, const std::shared_ptr<Tape>& tape);
  // int64 [parameters]: the bytes that the tape has recorded, by parameter id; memory that several share counts once.
  at::Tensor recorded_bytes(const Tape& tape, int64_t parameters) const;
  // After backward: turns the microbatch's norms into factors and adds its clipped gradients. Once per tape, and only
  // the tape recorded last (std::logic_error). A collective if groups are streamed.
  void add(ClippedSum& sum, const std::shared_ptr<Tape>& tape);

 private:
  friend class DpPlan;
  friend class AdjustablePlan;
  Clipper(fsdp::GroupedParameters& model, std::shared_ptr<const StepTerms> terms, Clipping clipping,
          const ClipperOptions& options, uint64_t plan);
  ClippedSum begin_sum();
  std::vector<const fsdp::FlatGroup*> streamed_groups() const;
  void check(const ClippedSum& sum, const std::shared_ptr<Tape>& tape) const;
  // Counts the units below the clip norm, if the sum's terms have noise for that: once for each microbatch.
  GroupFactors factors(ClippedSum& sum, const Tape& tape) const;
  at::Tensor flat_factors(const at::Tensor& squared_norms, accountant::ClipNorm clip_norm) const;

  fsdp::GroupedParameters& model_;
  std::shared_ptr<const StepTerms> terms_;  // the plan's; a sum takes them as they are when it begins
  Clipping clipping_;
  int64_t layers_ = 0;  // K: groups with trainable parameters
  bool two_pass_ = false;
  ClipperOptions options_;
  uint64_t plan_;
  std::shared_ptr<fsdp::GradientBuffers> sums_;
  std::shared_ptr<const RecordingPlan> planned_;  // the options', or a later one
  std::shared_ptr<HoldMemory> memory_;
  std::weak_ptr<Tape> open_;
  uint64_t sums_begun_ = 0;
};

}  // namespace ghostshard::dp
