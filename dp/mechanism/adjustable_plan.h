// The plan of a training loop whose noise multiplier and clip norm may change between logical batches, as Opacus'
// schedulers change them. Like DpPlan (dp/mechanism/plan.h) it is the one object from which clipper and mechanism come.
// The sampling rate, the divisor and the kind of clipping are fixed. Each logical batch keeps the terms that stood when
// it began: its clipping, its noise and its charge follow from one pair (dp/mechanism/step_terms.h), whatever is set
// while it is under way.
//
// The caller samples. The ledger is right only if each unit is drawn with this rate, independently of the others; with
// bins, if begin_pass_at() says where each deal of the units begins, and no logical batch holds a unit of another; with
// correlated noise, if the logical batch that is charged as step t holds units of group t mod groups() alone.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "dp/mechanism/clipper.h"
#include "dp/mechanism/gaussian.h"
#include "dp/mechanism/run_key.h"

namespace ghostshard::dp {

class AdjustablePlan {
 public:
  struct Config {
    accountant::SamplingRate sampling_rate{1.0};
    double divisor = 1;  // > 0; std::invalid_argument otherwise
    Clipping clipping = Clipping::kFlat;
    std::optional<ClipQuantile> clip_quantile = {};  // with flat clipping
    double expected_batch = 0;                       // B, for the clip quantile: whatever the divisor is
    // Of so many units at most so many are in a batch: truncated Poisson sampling (dp/mechanism/truncation.h). Without
    // a clip quantile.
    std::optional<std::pair<int64_t, int64_t>> largest_batch = {};
    // Each unit is in one of so many logical batches of a pass: balls-in-bins sampling (dp/mechanism/bins.h). The
    // sampling rate says nothing then. Without the three above.
    std::optional<int64_t> bins = {};
    // Noise bands or chains (dp/mechanism/noise_bands.h, noise_chain.h); the sampling rate is that within a group, and
    // the terms of the first logical batch are those of all. Without the four above, but the sampling rate.
    NoiseCorrelation correlation = {};
  };
  explicit AdjustablePlan(const Config& config);

  // From the next logical batch on. No noise multiplier: no noise, no privacy, and nothing for a ledger. If the clip
  // norm adapts, the noise multiplier is that of gradients and count together, and std::invalid_argument without one.
  // If noise is correlated, std::invalid_argument without one, and for terms that are not those which were set first:
  // the proof takes one clip norm and one noise for all steps.
  void set_terms(accountant::ClipNorm clip_norm, std::optional<accountant::NoiseMultiplier> noise_multiplier);
  accountant::ClipNorm clip_norm() const { return terms_->clip_norm; }  // of the next logical batch
  // With balls-in-bins sampling: the logical batch that is charged as this step is the first of a pass, whose units are
  // dealt anew. std::logic_error with other sampling.
  void begin_pass_at(int64_t step);
  // Into how many groups the units are dealt: 1 with noise that is not correlated.
  int64_t groups() const { return config_.correlation.groups(); }
  // How many steps from this one on are left out until it is this group's turn, 0 ≤ group < groups()
  // (std::invalid_argument); std::logic_error with white noise.
  int64_t steps_until(int64_t group, int64_t step) const;
  // Whether noise is drawn a second time, under the key of the step before.
  bool draws_noise_again() const { return config_.correlation.chain.steps > 1; }
  // Whether these two steps, of one attempt, are of one pass: never with other sampling.
  bool same_pass(const StepId& step, const StepId& other) const;

  // key (and ledger, on rank 0; null elsewhere) must outlive the objects made with them.
  Clipper clipper(fsdp::GroupedParameters& model, const ClipperOptions& options = {}) const;
  GaussianMechanism mechanism(fsdp::GroupedParameters& model, const RunKey& key,
                              accountant::LedgerWriter* ledger) const;

 private:
  void check_correlation() const;
  void check_terms(accountant::ClipNorm clip_norm, std::optional<accountant::NoiseMultiplier> noise_multiplier) const;

  Config config_;
  std::shared_ptr<StepTerms> terms_;
  uint64_t identity_;
};

}  // namespace ghostshard::dp
