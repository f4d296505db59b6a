// The Gaussian mechanism over ranks: the only way from a ClippedSum to anything readable.
//
// release() works in this order:
//   1. Rank 0 writes the step into the ledger, durably, and every rank learns that it did.
//   2. Group by group, each rank starts its slice from the noise it owns and adds the ranks' contributions to it in
//      rank order (fsdp/reduce_scatter.h), so that no sum without noise ever exists.
//   3. The sum is divided by the fixed divisor.
//   4. Parameters that every rank of the model axis holds whole become model rank 0's.
//   5. If the clip norm adapts (dp/mechanism/clip_quantile.h), rank 0's count of units below it gets noise of a key of
//      its own, the ranks' counts are added up, and the next step's clip norm follows from the noised count, which is
//      kept nowhere else.
//
// Noise is N(0, (sigma·C)²) per element. It is a function of (key, run id, step, attempt, parameter, element of the
// whole parameter) alone: the same for every number of ranks and every mesh. With a replicate axis, replica 0 adds it,
// once. If the plan has noise bands, chains or buffers, the steps released before by this mechanism go in as well
// (dp/mechanism/noise_bands.h, noise_chain.h, noise_blt.h). A step continues their chain only if it is the very next
// one and the one before was released whole.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "accountant/events.h"
#include "accountant/ledger.h"
#include "dp/mechanism/clip_quantile.h"
#include "dp/mechanism/clipped_sum.h"
#include "dp/mechanism/noise_bands.h"
#include "dp/mechanism/noise_chain.h"
#include "dp/mechanism/private_gradient.h"
#include "dp/mechanism/run_key.h"
#include "dp/mechanism/step_terms.h"
#include "fsdp/parameters.h"
#include "fsdp/reduce_pipeline.h"

namespace ghostshard::dp {

// The clip norm of one clipper and one mechanism, which adapts.
struct ClipAdaptation {
  ClipQuantile quantile;
  std::shared_ptr<StepTerms> terms;  // shared with the clipper, which takes the next step's clip norm from them
  double expected_batch;             // B, that the count is divided by
};

class GaussianMechanism {
 public:
  ~GaussianMechanism() { clear_keys(); }
  GaussianMechanism(const GaussianMechanism&) = delete;
  GaussianMechanism& operator=(const GaussianMechanism&) = delete;

  // Consumes the sum. A collective: every rank calls it for the same step. std::runtime_error on every rank if the
  // ledger could not be written (then nothing was released); std::logic_error for a sum of another plan or a step
  // that does not come after the one released last.
  PrivateGradient release(ClippedSum&& sum, const StepId& step);
  // Leaves the slices of the last release to those who hold them; the next step gets new ones. For callers who show the
  // slices to code that may keep them: they must not change into the next batch's sum under the same noise.
  void detach_slices() { slices_.reset(); }
  // If the clip norm adapts, after a release: the share of units below the clip norm, with noise. A part of the
  // release.
  const std::optional<double>& noised_share() const { return noised_share_; }

 private:
  friend class DpPlan;
  friend class AdjustablePlan;
  friend class Clipper;
  GaussianMechanism(fsdp::GroupedParameters& model, const RunKey& key, accountant::LedgerWriter* ledger, double divisor,
                    uint64_t plan, const NoiseCorrelation& correlation = {},
                    std::optional<ClipAdaptation> adaptation = {});
  // Begins a step unless `sum` already did: checks the order, writes the ledger, derives the noise key. An abandoned
  // sum's step cannot be reused: two sums under one noise would reveal their difference.
  void open(const ClippedSum& sum, const StepId& step);
  void charge(const StepId& step, const StepTerms& terms);
  // What the step costs: the terms' own event, or with buffers the row of its chain.
  accountant::Event charged_event(const StepTerms& terms) const;
  // Whether the step belongs to a pass (dp/mechanism/bins.h) that this mechanism has charged at the pass's first step,
  // and is not the first itself. std::logic_error for a later step of a pass that it has not; std::invalid_argument if
  // clip norm or noise are not those that the pass was charged with.
  bool charged_with_its_pass(const StepId& step, const StepTerms& terms) const;
  // std::logic_error unless release() may have this sum as that step.
  void check_releasable(const ClippedSum& sum, const StepId& step) const;
  // Reduces the groups that no microbatch has reduced; returns when every slice holds its noised sum over ranks,
  // divided.
  void reduce_rest(const ClippedSum& sum);
  // The ranks of the model axis hold some parameters whole and draw the same noise for them. If their sums differ
  // (activations of other bits, dropout of other coins), two sums under one noise would reveal their difference: so all
  // take model rank 0's.
  void agree_on_whole();
  // Releases the count, if there is one, and sets the next step's clip norm: the same on every rank.
  void adapt_clip_norm(const ClippedSum& sum, const StepId& step);
  // Where the ranks' contributions to a group are added: this rank's slice, which holds at least the noise it owns.
  at::Tensor noised_slice(const fsdp::FlatGroup& group);
  // This rank's slice, cleared and holding nothing but the noise that this rank owns.
  at::Tensor start_slice(const fsdp::FlatGroup& group);
  void add_own_noise(const fsdp::FlatGroup& group, const at::Tensor& slice, const kernels::ChaChaKey& key,
                     float scale) const;
  // Forgets the keys of the step that was opened last. They would show its noise.
  void clear_keys();
  // For one microbatch, the streamed groups (fsdp/reduce_scatter.h), whose sum never stands whole: begin; stream() for
  // each group once its contribution stands in its buffer (a group without a contribution too); end. All ranks keep one
  // order of groups. While one group is under way the next may be filled. Each group's first microbatch is added to
  // noise. Collectives.
  void begin_streaming(ClippedSum& sum);
  void stream(fsdp::GradientBuffers& sums, const fsdp::FlatGroup& group);
  void end_streaming();

  fsdp::GroupedParameters& model_;
  const RunKey* key_;
  accountant::LedgerWriter* ledger_;  // rank 0 only
  double divisor_;
  uint64_t plan_;
  std::shared_ptr<fsdp::ShardBuffers> slices_;
  std::optional<StepId> last_;               // opened last
  std::optional<StepId> charged_pass_;       // by its first step
  StepTerms charged_terms_;                  // of that pass: what a unit costs holds for one noise in all its steps
  std::optional<uint64_t> open_for_;         // the sum for which last_ is charged and not released yet
  bool released_whole_ = false;              // last_ was released
  std::optional<accountant::BltRows> rows_;  // with noise from buffers
  int64_t row_ = 0;                          // of its chain, of the step under way
  double band_norm_;                         // s of noise_bands.h or noise_blt.h; 1 without
  float noise_scale_ = 0;                    // s·sigma·C of that sum, rounded up; s of bands or of the chain
  kernels::ChaChaKey noise_key_{};
  NoiseChain chain_;
  std::optional<kernels::ChaChaKey> key_taken_back_;  // of the step before, if its noise is taken back
  NoiseHistory history_;
  NoiseBuffers buffers_;
  std::optional<ClipAdaptation> adaptation_;
  std::optional<double> noised_share_;  // of the last release
  std::vector<bool> started_;           // by group index: the slice holds noise, and maybe microbatches
  // Keeps point 2 above, which the privacy report states as the noise's placement "before the reduction": the pipeline
  // asks noised_slice() for the slice before it adds any contribution of a group, and that slice holds the noise
  // already.
  fsdp::ReducePipeline reduction_;
};

}  // namespace ghostshard::dp
