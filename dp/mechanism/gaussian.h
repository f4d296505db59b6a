// The Gaussian mechanism over ranks: the only door from a ClippedSum to anything readable.
//
// release(): the ledger is written and durable on rank 0 and every rank knows it; then, group by group, each rank
// starts its slice from the noise it owns and adds the ranks' contributions to it in rank order
// (fsdp/reduce_scatter.h), so no sum without noise ever exists; then the fixed divisor. Noise is N(0, (sigma·C)²) per
// element, a function of (key, run id, step, attempt, parameter, element of the whole parameter) alone: the same for
// every number of ranks and every mesh. With a replicate axis replica 0 adds it, once.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "accountant/events.h"
#include "accountant/ledger.h"
#include "dp/mechanism/clipped_sum.h"
#include "dp/mechanism/private_gradient.h"
#include "dp/mechanism/run_key.h"
#include "fsdp/parameters.h"

namespace ghostshard::dp {

class GaussianMechanism {
 public:
  // Consumes the sum. A collective: every rank calls it for the same step. std::runtime_error on every rank if the
  // ledger could not be written (then nothing was released); std::logic_error for a sum of another plan or a step
  // that does not come after the one released last.
  PrivateGradient release(ClippedSum&& sum, const StepId& step);
  // Leaves the slices of the last release to whoever holds them; the next step gets new ones. For callers who show
  // them to code that may keep them: what they see must not change into the next batch's sum under the same noise.
  void give_away_slices() { slices_.reset(); }

 private:
  friend class DpPlan;
  friend class AdjustablePlan;
  friend class Clipper;
  GaussianMechanism(fsdp::GroupedParameters& model, const RunKey& key, accountant::LedgerWriter* ledger, double divisor,
                    uint64_t plan);
  // Opens a step, unless this sum has: order, ledger, noise key. A sum that was given up leaves its step open for
  // nobody: another sum under the same noise would let two batches share it.
  void open(const ClippedSum& sum, const StepId& step);
  void charge(const StepId& step, const StepTerms& terms);
  // This rank's slice of the group, holding nothing but the noise it owns.
  at::Tensor start_slice(const fsdp::FlatGroup& group);
  // One microbatch of the groups whose sum never stands whole. Slices were started with noise, so that no sum without
  // it exists. Begin, each streamed group once its contribution stands in its buffer (none: it has none), end; in one
  // order of groups on all ranks. While one travels the next may be filled. Collectives.
  void begin_streaming(ClippedSum& sum);
  void stream(fsdp::GradientBuffers& sums, const fsdp::FlatGroup& group);
  void end_streaming();

  fsdp::GroupedParameters& model_;
  const RunKey* key_;
  accountant::LedgerWriter* ledger_;  // rank 0 only
  double divisor_;
  uint64_t plan_;
  fsdp::ReduceScatter reduction_;
  std::shared_ptr<fsdp::ShardBuffers> slices_;
  std::optional<StepId> last_;        // opened last
  std::optional<uint64_t> open_for_;  // the sum for which last_ is charged and not released yet
  float noise_scale_ = 0;             // sigma·C of that sum, rounded up
  kernels::ChaChaKey noise_key_{};
  std::vector<bool> started_;  // by group index: the slice holds noise, and maybe microbatches
  const fsdp::FlatGroup* travelling_ = nullptr;
};

}  // namespace ghostshard::dp
