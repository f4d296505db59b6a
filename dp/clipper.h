// Flat per-unit clipping: c_u = min(1, C/‖g_u‖) over all trainable parameters, then the sum of c_u·g_u.
//
// The bound each unit obeys: ‖c_u·g_u as added‖ ≤ C. Norms are upper bounds (kernels/norm_parts.h), factors are
// rounded towards zero and shrunk by 2^-22 for the rounding of the product. A unit whose norm is not finite
// contributes exactly zero. Where layers are cut over the model axis, the norm of a unit is all-reduced over it: each
// rank sends the bounds of what only it holds, model rank 0 also those of what all of them hold. A sum of bounds is a
// bound (its float64 rounding, M·2^-53 for M ranks, is far inside the 2^-22), and all ranks get the same bits, hence
// the same factors. What is left is the rounding of the float32 sum over units: removing a unit also moves the
// rounding of every other addition, at worst by 2·gamma(n)·(sum of norms), n additions; DpPlan::rounding_slack states
// it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "accountant/types.h"
#include "dp/clipped_sum.h"
#include "dp/mechanism.h"
#include "dp/tape.h"

namespace ghostshard::dp {

struct ClipperOptions {
  RecordingChoice recording = RecordingChoice::kAutomatic;
  int64_t hold_memory_bytes = int64_t{1} << 30;  // for kAutomatic
  // From a step plan (dp/step_plan.h). By parameter id, for matrices; nothing or a shorter list: as `recording` says.
  std::vector<std::optional<kernels::Recording>> planned_recording = {};
  // By group index: contributions are reduced with every microbatch, their sum never stands whole on a rank.
  std::vector<bool> reduce_each = {};
};

class Clipper {
 public:
  // Starts a logical batch. The previous one must have been consumed (std::logic_error): buffers are allocated once.
  // Only where nothing is reduced with every microbatch (std::logic_error).
  ClippedSum begin();
  // The same for any plan: mechanism.release() of this sum must then be called with the same step. Where parts are
  // reduced with every microbatch, the first add() writes the ledger and puts the noise in before anything leaves.
  ClippedSum begin(GaussianMechanism& mechanism, const StepId& step);
  // The recorder for one microbatch of `units` units, for one backward pass. The previous one must have been added or
  // dropped (std::logic_error): held gradients share one memory.
  std::shared_ptr<Tape> record(int64_t units);
  // After backward: turns the microbatch's norms into factors and adds its clipped gradients. Once per tape, and only
  // the tape recorded last (std::logic_error). A collective where the plan reduces with every microbatch.
  void add(ClippedSum& sum, std::shared_ptr<Tape> tape);

 private:
  friend class DpPlan;
  ClippedSum begin_sum();
  Clipper(fsdp::ShardedModel& model, accountant::ClipNorm clip_norm, const ClipperOptions& options, uint64_t plan);

  fsdp::Mesh& mesh_;
  accountant::ClipNorm clip_norm_;
  ClipperOptions options_;
  uint64_t plan_;
  std::shared_ptr<fsdp::GradientBuffers> sums_;
  std::unique_ptr<HoldMemory> memory_;
  std::weak_ptr<Tape> open_;
  uint64_t sums_begun_ = 0;
};

// float32 [U] from float64 upper bounds of squared norms [U]: min(1, C/sqrt(n²)), rounded towards zero and shrunk by
// 2^-22; 0 where the bound is not finite.
at::Tensor clip_factors(const at::Tensor& squared_norms, accountant::ClipNorm clip_norm);

}  // namespace ghostshard::dp
