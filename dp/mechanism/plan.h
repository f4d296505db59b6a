// The one object from which sampler, clipper, mechanism, divisor and accounting event come.
//
// A DpPlan is made of public constants that are fixed before data is read: n, expected batch B, steps T, sigma (given,
// or calibrated to a target epsilon), clip norm C, delta, adjacency, unit of privacy. There is no other way to make a
// sampler, a clipper or a mechanism, so the run that is accounted is the run that happens. Constructors are private:
// "accounted one sampler and ran another" cannot be written.
//
// Guarantee per logical step: the released value is (sum over sampled units of c_u·g_u + N(0,(sigma·C)²·I))/B, each
// unit sampled independently with probability q = B/n, ‖c_u·g_u‖ ≤ C: a Poisson-sampled Gaussian with noise
// multiplier sigma (arXiv:1607.00133; accounting arXiv:1908.10530).
//
// With noise bands (dp/mechanism/noise_bands.h) the units are dealt to b groups, step t samples group t mod b alone
// with probability q = B·b/n, and the noise of consecutive steps is correlated. What a unit's group was not drawn for
// costs that unit nothing: T steps cost ⌈T/b⌉ Poisson-sampled Gaussians of rate q (arXiv:2306.08153, Thm. 4). Derived
// for zero-out alone: under add-or-remove a unit's place, hence its group, would not be fixed.
//
// A noise chain (dp/mechanism/noise_chain.h) has the same sampling and the same cost, and keeps nothing.
//
// Noise from buffers (dp/mechanism/noise_blt.h) comes with other sampling: the units are dealt to b = ⌈n/B⌉ groups, and
// step t takes the whole of group t mod b, without a coin. A whole run is one Gaussian of noise multiplier sigma; step
// by step it is charged as rows (accountant/blt_rows.h).
//
// With balls-in-bins sampling (dp/mechanism/bins.h) the release is a pass of t = ⌈n/B⌉ steps, in exactly one of which
// each unit is: T steps of one session cost ⌈T/t⌉ of them. The divisor stays B. Derived for one clip norm and white
// noise, under zero-out and add-or-remove.
// With a largest batch (dp/mechanism/truncation.h) a step takes at most `maximum_batch` of the drawn units, chosen
// uniformly, and costs a truncated Poisson sample of a Gaussian (arXiv:2508.15089). The divisor stays B.
//
// If the clip norm adapts (dp/mechanism/clip_quantile.h), C is the first step's, each step also releases a count, and
// the noise multiplier that is given or calibrated is that of both together: sigma, the gradients', is larger.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "accountant/accountant.h"
#include "accountant/blt_rows.h"
#include "accountant/ledger.h"
#include "accountant/rounds.h"
#include "dp/mechanism/clip_quantile.h"
#include "dp/mechanism/clipper.h"
#include "dp/mechanism/gaussian.h"
#include "dp/mechanism/run_key.h"
#include "dp/mechanism/sampler.h"
#include "fsdp/parameters.h"

namespace ghostshard::dp {

struct DpConfig {
  int64_t units = 0;           // n: privacy units in the data set, a public number
  int64_t expected_batch = 0;  // B: fixed divisor, 1 ≤ B ≤ n; q = B/n
  int64_t steps = 0;           // T ≥ 1
  accountant::ClipNorm clip_norm{1.0};
  Clipping clipping = Clipping::kFlat;
  std::optional<ClipQuantile> clip_quantile = {};  // with flat clipping and white noise
  NoiseBands noise_bands = {};                     // b ≤ T and B·b ≤ n
  NoiseChain noise_chain = {};                     // likewise; one of the three
  NoiseBlt noise_blt = {};                         // its outputs and decays: the plan knows the rest
  bool noise_on_host = false;                      // where bands and buffers are kept; free to change on resume
  Sampling sampling = Sampling::kPoisson;          // balls-in-bins: without the four above
  std::optional<int64_t> maximum_batch = {};       // B ≤ cap ≤ n; with white noise and a fixed clip norm
  // Exactly one of the two.
  std::optional<accountant::Epsilon> target_epsilon;
  std::optional<accountant::NoiseMultiplier> noise_multiplier;
  std::optional<accountant::Delta> delta;  // default min(1e-6, n^-1.1)
  accountant::Adjacency adjacency = accountant::Adjacency::kZeroOut;
  std::string unit_of_privacy = "text";
  std::string accountant = "contour";

  // b, into which the units are dealt: 1 with white noise.
  int64_t groups() const { return std::max(noise_bands.count(), noise_chain.steps); }
};

class DpPlan {
 public:
  // Throws std::invalid_argument: the rule and the value; also when no noise reaches the target.
  static DpPlan make(const DpConfig& config);

  // The plan of a run under way, to resume it. sigma is the ledger's (another version of the library might calibrate
  // another one), and every other constant must be the ledger's. Throws std::invalid_argument naming the constant that
  // differs, or the release in the ledger that this plan would not make.
  static DpPlan resume(const DpConfig& config, const accountant::LedgerContents& ledger);
  // The clip norm of the next step, before clipper() and mechanism(). std::invalid_argument unless it adapts and this
  // one lies within its limits.
  void go_on_with(accountant::ClipNorm clip_norm);
  // This step is a session's first: with balls-in-bins sampling it begins a pass, with noise from buffers a chain.
  // Before sampler() and clipper(); by default step 0. With balls-in-bins std::logic_error after sampler().
  void begin_session_at(int64_t step);

  const DpConfig& config() const { return config_; }
  accountant::SamplingRate sampling_rate() const;
  accountant::NoiseMultiplier noise_multiplier() const { return sigma_; }  // of the sums of gradients
  accountant::ClipNorm clip_norm() const { return terms_->clip_norm; }     // of the next step
  accountant::Delta delta() const { return delta_; }
  double divisor() const { return static_cast<double>(config_.expected_batch); }
  // Of the noise in each element of a step's release, (sigma·C/B)²; with noise bands that of the last step's, which is
  // the largest, in noise chains the mean of a chain's. 0 if the clip norm adapts: steps have no variance in common. A
  // public number, for optimizers that use it.
  double release_variance() const;
  // Of a step; with balls-in-bins sampling of a pass, with noise from buffers of a whole run.
  accountant::Event event() const;
  // What this step of the session costs, and as which round it counts in rounds().
  accountant::Event event_at(int64_t step) const;
  int64_t round_of(int64_t step) const;
  // Charges an accountant with these rounds.
  void charge(accountant::Accountant& engine, const accountant::Rounds& rounds) const;
  // Whether this step's charge stands for itself, or it is the first of its pass: there is a line in the ledger.
  bool charges_at(int64_t step) const { return !terms_->passes || terms_->passes->begins_pass(step); }
  // Charges of so many steps from a session's first on, and the most steps that so many charges pay for.
  int64_t charges_of(int64_t steps) const { return (steps + steps_a_charge() - 1) / steps_a_charge(); }
  int64_t steps_of(int64_t charges) const { return charges * steps_a_charge(); }
  // An accountant that has been charged nothing yet.
  std::unique_ptr<accountant::Accountant> accountant() const;
  // A run that has been charged nothing yet, by groups of units; of passes each counts once. With noise from buffers by
  // the rows of chains: a "group" is a row.
  accountant::Rounds rounds() const { return accountant::Rounds(rows_ ? rows_->steps() : config_.groups()); }
  // Epsilon after the plan's first `steps` steps, each released once.
  accountant::EpsilonBound epsilon_after(int64_t steps) const;
  // After what was charged and one release of each of the steps first, …, first + steps - 1, of which the first begins
  // a pass, if there are passes.
  accountant::EpsilonBound epsilon_after(const accountant::Rounds& charged, int64_t first, int64_t steps) const;
  // The plan promises to stay within this epsilon: the target, or the epsilon of all its steps if sigma was given.
  // std::invalid_argument if that is not finite.
  accountant::Epsilon promised_epsilon() const;
  // How many of the steps first, …, first + steps - 1 keep epsilon within the limit after what was charged. Steps
  // repeated after a crash are charged again, so a resumed run may have to stop early to keep its promise.
  int64_t steps_within(accountant::Epsilon limit, const accountant::Rounds& charged, int64_t first,
                       int64_t steps) const;

  // key and ledger must outlive the objects made with them. ledger: on rank 0 alone (std::invalid_argument elsewhere).
  // Null on rank 0 means that nothing is charged: for callers who account for every release themselves, and for tests.
  // If the clip norm adapts, clipper and mechanism share it, and a plan serves one of each.
  PoissonSampler sampler(const RunKey& key, int64_t rank, int64_t world_size) const;
  Clipper clipper(fsdp::GroupedParameters& model, const ClipperOptions& options = {}) const;
  GaussianMechanism mechanism(fsdp::GroupedParameters& model, const RunKey& key,
                              accountant::LedgerWriter* ledger) const;

  // By their names in the ledger's header.
  nlohmann::json public_constants() const;
  // The ledger's header: everything a third party needs to account for the run again.
  nlohmann::json ledger_header(const RunKey& key) const;

  // The most by which removing one unit can move the float32 sum over `units` units beyond C, relative to C: every
  // rounding of the others may turn out anew. Twice kernels::shared_rounding; docs/guarantee.md, "Rounding".
  static double rounding_slack(int64_t units);

 private:
  int64_t session_first_ = 0;
  std::shared_ptr<const accountant::BltRows> rows_;  // with noise from buffers
  int64_t steps_a_charge() const { return terms_->passes ? terms_->passes->steps : 1; }
  DpPlan(DpConfig config, accountant::NoiseMultiplier sigma, accountant::Delta delta);

  DpConfig config_;
  accountant::NoiseMultiplier sigma_;
  accountant::Delta delta_;
  std::shared_ptr<StepTerms> terms_;  // of every step; if the clip norm adapts, of the next one
  uint64_t identity_;                 // ties sums to the plan that bounded them
};

// min(1e-6, n^-1.1).
accountant::Delta default_delta(int64_t units);

}  // namespace ghostshard::dp
