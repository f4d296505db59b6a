// Events: the releases of one step, in terms that an accountant can bound. Names follow dp_accounting's DpEvent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accountant/types.h"

namespace ghostshard::accountant {

// Which data sets count as neighbours.
//   zero-out       one unit's record is replaced by one that contributes nothing; n is public. The numbers of the
//                  Poisson-sampled Gaussian are the same as under add-or-remove.
//   add-or-remove  one data set is the other with one unit added or removed.
//   replace-one    one unit's record is replaced by any other; n is public.
enum class Adjacency { kZeroOut, kAddOrRemove, kReplaceOne };
std::string to_string(Adjacency adjacency);                // "zero-out", "add-or-remove", "replace-one"
Adjacency adjacency_from_string(const std::string& text);  // std::invalid_argument listing the known ones

// A sum to which each unit contributes at most norm S, released with noise N(0, (sigma·S)²) per coordinate. Under
// replace-one two such contributions differ by up to 2·S.
struct GaussianEvent {
  NoiseMultiplier sigma;
  bool operator==(const GaussianEvent&) const = default;
};

// The same sum over a Poisson sample: each unit is included independently with probability q.
struct PoissonGaussianEvent {
  SamplingRate q;
  NoiseMultiplier sigma;
  bool operator==(const PoissonGaussianEvent&) const = default;
};

// The same sum over exactly `batch` of `units` units, drawn uniformly without replacement. 1 <= batch <= units.
struct FixedSizeGaussianEvent {
  int64_t units;
  int64_t batch;
  NoiseMultiplier sigma;
  bool operator==(const FixedSizeGaussianEvent&) const = default;
};

// The same sum over a Poisson sample of at most `cap` units: if more are drawn, a uniformly chosen subset of `cap` of
// them is kept (arXiv:2508.15089). 1 <= cap <= units.
struct TruncatedPoissonGaussianEvent {
  int64_t units;
  SamplingRate q;
  int64_t cap;
  NoiseMultiplier sigma;
  bool operator==(const TruncatedPoissonGaussianEvent&) const = default;
};

// A step of adaptive clipping (Andrew et al. 2021, arXiv:1905.03871, Thm. 1). It releases two numbers about one Poisson
// sample: the sum of clipped gradients with noise sigma·S, and the centred count Σ(b_u - 1/2) with noise
// N(0, count_sigma²), count_sigma in counts. b_u is 1 if unit u's norm was below the clip norm, else 0. A unit moves
// the pair by 1/sigma and 1/(2·count_sigma) standard deviations. So the pair is one Gaussian with the noise multiplier
// (sigma^-2 + (2·count_sigma)^-2)^(-1/2).
struct AdaptiveClippingEvent {
  SamplingRate q;
  NoiseMultiplier sigma;
  NoiseMultiplier count_sigma;
  bool operator==(const AdaptiveClippingEvent&) const = default;
};

// ---- Releases beside the gradients, composed with them: vocabularies, counts, histograms, choices, evaluations. Their
// loss is no Gaussian's; losses/ has the pair of distributions that dominates each (Zhu et al. 2022, arXiv:2106.08567).
//
// Some have a sampling rate: the release is made of a Poisson sample. 1 is no sampling.

// A sum to which each unit contributes at most S in L1 norm, with noise of density e^(-|x|/b)/(2b), b =
// noise_multiplier·S on each coordinate. Under replace-one contributions differ by up to 2·S.
struct LaplaceEvent {
  SamplingRate q;
  NoiseMultiplier scale;
  bool operator==(const LaplaceEvent&) const = default;
};

// A sum of integers to which each unit contributes at most `sensitivity` in L1 norm, with noise x of probability
// tanh(a/2)·e^(-a|x|) on each coordinate.
struct DiscreteLaplaceEvent {
  SamplingRate q;
  NoiseParameter a;
  int64_t sensitivity;
  bool operator==(const DiscreteLaplaceEvent&) const = default;
};

// A sum of integers, of which one coordinate changes by at most `sensitivity`, with noise x of a probability
// proportional to e^(-x²/(2·deviation²)) (Canonne, Kamath, Steinke 2020, arXiv:2004.00010). Nothing is said of several
// coordinates of one unit: charge each.
struct DiscreteGaussianEvent {
  SamplingRate q;
  NoiseMultiplier deviation;
  int64_t sensitivity;
  bool operator==(const DiscreteGaussianEvent&) const = default;
};

// One choice with probability proportional to e^(epsilon·score/(2·Δ)), Δ the most that a unit changes any score: it is
// epsilon-bounded range (Dong, Durfee, Rogers 2020, arXiv:1909.13830), which is less than epsilon-DP.
struct ExponentialMechanismEvent {
  Epsilon epsilon;
  bool operator==(const ExponentialMechanismEvent&) const = default;
};

// Any mechanism known to be (epsilon, delta)-DP under the ledger's adjacency, and nothing else known of it: a
// vocabulary or a histogram with a threshold, a random response.
struct EpsilonDeltaEvent {
  Epsilon epsilon;
  Probability delta;
  bool operator==(const EpsilonDeltaEvent&) const = default;
};

// Any mechanism known to be (xi, rho)-zCDP under the ledger's adjacency: its Rényi divergence of order alpha is at most
// xi + rho·alpha (Bun, Steinke 2016, arXiv:1605.02065). The engines bound it from above: lower ends are 0.
struct ZcdpEvent {
  Rho rho;
  Rho xi;
  bool operator==(const ZcdpEvent&) const = default;
};

// The Poisson-sampled sum if a privacy unit has `group` records, each of which is drawn by itself and contributes at
// most norm S: what a user with so many records loses.
struct GroupPoissonGaussianEvent {
  int64_t group;
  SamplingRate q;
  NoiseMultiplier sigma;
  bool operator==(const GroupPoissonGaussianEvent&) const = default;
};

// N(0, deviation²) against N(s_i, deviation²) with probability p_i (arXiv:2310.15526). s_i >= 0; the p_i add up to 1.
struct MixtureOfGaussiansEvent {
  NoiseMultiplier deviation;
  std::vector<double> sensitivities;
  std::vector<double> probabilities;
  bool operator==(const MixtureOfGaussiansEvent&) const = default;
};

// All prefix sums of `steps` contributions from one binary tree, to whose leaves each unit contributes once, with noise
// (sigma·S)² on each node (Kairouz et al. 2021, arXiv:2103.00039, App. D). A unit moves one node on each level.
struct TreeAggregationEvent {
  int64_t steps;
  NoiseMultiplier sigma;
  bool operator==(const TreeAggregationEvent&) const = default;
};

// One pass over the data in `steps` sums, with balls-in-bins sampling: each unit is in exactly one of them, uniformly
// random and independent of all other units (arXiv:2412.16802). One event is the whole pass, whatever part of it is
// released. 1 <= steps <= 100000; with more than one step sigma is from 0.05 to 1000.
inline constexpr int64_t kMostBins = 100'000;
inline constexpr double kLeastBinsNoise = 0.05, kMostBinsNoise = 1000;
struct BallsInBinsGaussianEvent {
  int64_t steps;
  NoiseMultiplier sigma;
  bool operator==(const BallsInBinsGaussianEvent&) const = default;
};

// Any mechanism whose dominating pair is given as a table: loss log(P/Q) of an outcome and its probability under P, the
// data with the unit. `infinite`: probability under P of outcomes that Q never has. Probabilities add up to 1, to 1e-9,
// and what they lack counts as infinite; those of Q, which are e^-loss of them, to at most 1, and what they lack are
// outcomes that P never has. Of a table up to 1e-14 that is lacking is taken for the table's own rounding.
struct LossTableEvent {
  std::vector<double> losses;
  std::vector<double> probabilities;
  Probability infinite;
  bool operator==(const LossTableEvent&) const = default;
};

// Tuning of hyper-parameters (Papernot, Steinke 2022, arXiv:2110.03620). One run, of the releases in `run` and with
// hyper-parameters drawn independently of the data, is done K times over; the output of the best run is released, with
// its score, and nothing of the others. The score is part of each run's output: what it reads of the data is charged in
// `run`. K is drawn by itself and stays secret. gaussian/tuning.h has the bound.
//   negative binomial  P(K = k) ∝ (1-gamma)^k·Π_{l<k} (l+shape)/(l+1) for k >= 1; shape 1 is geometric, 0 logarithmic.
//   Poisson            of this mean; for K = 0 something is released that does not depend on the data.
struct TunedRelease;
struct TuningNegativeBinomialEvent {
  RepeatShape shape;
  RepeatGamma gamma;
  std::vector<TunedRelease> run;
  bool operator==(const TuningNegativeBinomialEvent& other) const;
};
// E[K]·gamma/(1 - gamma) of the negative binomial: h/(1 - gamma^h), to some roundings.
double repeat_share(double shape, double log_gamma);
struct TuningPoissonEvent {
  RepeatMean mean;
  std::vector<TunedRelease> run;
  bool operator==(const TuningPoissonEvent& other) const;
};

using Event = std::variant<GaussianEvent, PoissonGaussianEvent, FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent,
                           AdaptiveClippingEvent, LaplaceEvent, DiscreteLaplaceEvent, DiscreteGaussianEvent,
                           ExponentialMechanismEvent, EpsilonDeltaEvent, ZcdpEvent, GroupPoissonGaussianEvent,
                           MixtureOfGaussiansEvent, TreeAggregationEvent, BallsInBinsGaussianEvent, LossTableEvent,
                           TuningNegativeBinomialEvent, TuningPoissonEvent>;

// `count` executions in each run that is tuned.
struct TunedRelease {
  Event event;
  int64_t count;
  bool operator==(const TunedRelease&) const = default;
};

// {"type":"gaussian","noise_multiplier":s}
// {"type":"poisson_gaussian","sampling_rate":q,"noise_multiplier":s}
// {"type":"fixed_size_gaussian","units":n,"batch":b,"noise_multiplier":s}
// {"type":"truncated_poisson_gaussian","units":n,"sampling_rate":q,"cap":b,"noise_multiplier":s}
// {"type":"poisson_adaptive_clipping","sampling_rate":q,"noise_multiplier":s,"count_noise":s_b}
// {"type":"laplace","sampling_rate":q,"noise_multiplier":b}
// {"type":"discrete_laplace","sampling_rate":q,"noise_parameter":a,"sensitivity":k}
// {"type":"discrete_gaussian","sampling_rate":q,"standard_deviation":s,"sensitivity":k}
// {"type":"exponential_mechanism","epsilon":e}
// {"type":"epsilon_delta","epsilon":e,"delta":d}
// {"type":"zcdp","rho":r,"xi":x}
// {"type":"group_poisson_gaussian","group":k,"sampling_rate":q,"noise_multiplier":s}
// {"type":"mixture_of_gaussians","standard_deviation":s,"sensitivities":[…],"probabilities":[…]}
// {"type":"tree_aggregation","steps":t,"noise_multiplier":s}
// {"type":"balls_in_bins_gaussian","steps":t,"noise_multiplier":s}
// {"type":"loss_table","losses":[…],"probabilities":[…],"infinite":p}
// {"type":"tuning_negative_binomial","shape":h,"gamma":g,"run":[{"event":{…},"count":n},…]}
// {"type":"tuning_poisson","mean":m,"run":[{"event":{…},"count":n},…]}
// event_from_json throws std::invalid_argument with the rule that is broken; an unknown type is an error, never a
// guess. to_json throws if require_valid does.
nlohmann::json to_json(const Event& event);
Event event_from_json(const nlohmann::json& json);

// The kind and all numbers of an event, in an order: equal if and only if the events are.
using EventKey = std::tuple<size_t, std::vector<double>, std::vector<int64_t>>;
EventKey key_of(const Event& event);

std::string type_name(const Event& event);                   // "gaussian", …
std::optional<double> noise_multiplier(const Event& event);  // of a release of gradients; nothing for another release
bool is_tuning(const Event& event);                          // either of the two
// Throws std::invalid_argument: no engine of this name bounds the event under this adjacency.
[[noreturn]] void refuse_event(const std::string& engine, const Event& event, Adjacency adjacency);
// Throws std::invalid_argument unless counts are >= 1, a pass within its limits, a batch, a cap and a group at most the
// units, tables add up as their events say, and a tuned run has releases of which none is tuning itself.
void require_valid(const Event& event);

}  // namespace ghostshard::accountant
