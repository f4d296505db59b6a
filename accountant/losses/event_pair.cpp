#include "accountant/losses/event_pair.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "accountant/losses/balls_in_bins.h"
#include "accountant/losses/laws.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();

LossCells sampled_if(const LossCells& cells, SamplingRate q) {
  return q.value() < 1 ? poisson_sampled(cells, q.value()) : cells;
}

// How many of `group` records are drawn, each with probability q. In long double, in which none of the logarithms, at
// most some 1e4 where a weight counts, errs by 1e-14, for a group of two by 1e-16.
NormalMixture binomial_means(int64_t group, double given) {
  NormalMixture mixture;
  const auto n = static_cast<long double>(group);
  const long double q = given;
  const auto log_factorial = [](long double k) {
    int sign = 0;
    return ::lgammal_r(k + 1, &sign);  // std::lgamma writes the sign to a global
  };
  for (int64_t drawn = 0; drawn <= group; ++drawn) {
    const auto j = static_cast<long double>(drawn);
    const long double log_choices = log_factorial(n) - log_factorial(j) - log_factorial(n - j);
    const long double log_weight =
        log_choices + (j > 0 ? j * std::log(q) : 0) + (n - j > 0 ? (n - j) * std::log1p(-q) : 0);
    const auto weight = static_cast<double>(std::exp(log_weight));
    if (weight < 1e-300) continue;
    mixture.weights.push_back(weight);
    mixture.at.push_back(static_cast<double>(drawn));
  }
  return mixture;
}

// Weights rounded so that P is less private: each is raised by as much as it and those left out may err, and what they
// exceed 1 by is taken off the least mean. Lower ends count twice that (`errors`).
void round_up(NormalMixture& mixture, double relative) {
  double others = 0;
  mixture.errors.assign(mixture.weights.size(), 0);
  for (size_t i = 1; i < mixture.weights.size(); ++i) {
    mixture.weights[i] *= 1 + relative;
    mixture.errors[i] = 3 * relative * mixture.weights[i];
    others += mixture.weights[i];
  }
  mixture.weights[0] = std::max(0.0, 1 - others);
  mixture.errors[0] = 3 * relative * others;
}

// Nothing: the event has no table under this adjacency.
struct CellsOf {
  using Found = std::optional<LossCells>;
  Adjacency adjacency;
  bool replace() const { return adjacency == Adjacency::kReplaceOne; }

  Found operator()(const GaussianEvent&) const { return std::nullopt; }
  Found symmetric(double q, double sigma) const {
    if (!replace()) return std::nullopt;
    if (q == 1) return normal_mixture_losses({{1}, {1}}, {{1}, {-1}}, sigma);
    return normal_mixture_losses({{1 - q, q}, {0, 1}}, {{1 - q, q}, {0, -1}}, sigma);
  }
  Found operator()(const PoissonGaussianEvent& e) const { return symmetric(e.q.value(), e.sigma.value()); }
  Found operator()(const AdaptiveClippingEvent& e) const {
    const double both = std::hypot(1 / e.sigma.value(), 1 / (2 * e.count_sigma.value()));
    return symmetric(e.q.value(), 1 / both * (1 - 4 * kRounding));
  }
  Found operator()(const FixedSizeGaussianEvent& e) const {
    if (!replace()) return std::nullopt;
    const double rate = static_cast<double>(e.batch) / static_cast<double>(e.units);
    LossCells cells = without_replacement_losses(std::min(1.0, rate * (1 + 2 * kRounding)), e.sigma.value());
    for (LossCell& cell : cells.cells) {  // where P counts, the larger mean has most of it
      cell.p_error += 8 * kRounding * cell.p;
      cell.q_error += 8 * kRounding * cell.q;
    }
    return cells;
  }
  Found operator()(const TruncatedPoissonGaussianEvent&) const { return std::nullopt; }
  Found operator()(const LaplaceEvent& e) const {
    if (replace() && e.q.value() < 1) return std::nullopt;
    return sampled_if(laplace_losses(e.scale.value() / (replace() ? 2 : 1)), e.q);
  }
  Found operator()(const DiscreteLaplaceEvent& e) const {
    if (replace() && e.q.value() < 1) return std::nullopt;
    return sampled_if(discrete_laplace_losses(e.a.value(), e.sensitivity * (replace() ? 2 : 1)), e.q);
  }
  Found operator()(const DiscreteGaussianEvent& e) const {
    if (replace() && e.q.value() < 1) return std::nullopt;
    return sampled_if(discrete_gaussian_losses(e.deviation.value(), e.sensitivity * (replace() ? 2 : 1)), e.q);
  }
  Found operator()(const ExponentialMechanismEvent& e) const { return bounded_range_losses(e.epsilon.value()); }
  Found operator()(const EpsilonDeltaEvent& e) const {
    return epsilon_delta_losses(e.epsilon.value(), e.delta.value());
  }
  Found operator()(const ZcdpEvent& e) const { return zcdp_losses(e.rho.value(), e.xi.value()); }
  Found operator()(const GroupPoissonGaussianEvent& e) const {
    if (replace()) return std::nullopt;
    NormalMixture mixture = binomial_means(e.group, e.q.value());
    const double relative = kRounding * static_cast<double>(e.group + 4);  // and of their sum
    if (mixture.at.size() > 1) round_up(mixture, relative);
    return normal_mixture_losses(mixture, {{1}, {0}}, e.sigma.value());
  }
  Found operator()(const MixtureOfGaussiansEvent& e) const {
    if (replace()) return std::nullopt;
    std::map<double, double> by_mean{{0.0, 0.0}};
    for (size_t i = 0; i < e.sensitivities.size(); ++i) by_mean[e.sensitivities[i]] += e.probabilities[i];
    NormalMixture mixture;
    double total = 0;
    for (const auto& [at, weight] : by_mean) {
      mixture.at.push_back(at);
      mixture.weights.push_back(weight);
      total += weight;
    }
    if (mixture.at.size() == 1) return normal_mixture_losses({{1}, {0}}, {{1}, {0}}, e.deviation.value());
    // What the probabilities lack of 1 goes to the largest mean.
    mixture.weights.back() += std::max(0.0, 1 - total);
    const double relative = kRounding * static_cast<double>(e.sensitivities.size() + 1);
    round_up(mixture, relative);
    return normal_mixture_losses(mixture, {{1}, {0}}, e.deviation.value());
  }
  Found operator()(const TreeAggregationEvent&) const { return std::nullopt; }
  Found operator()(const BallsInBinsGaussianEvent&) const { return std::nullopt; }  // a pair of its own, below
  Found operator()(const LossTableEvent& e) const { return table_losses(e); }
  Found operator()(const TuningNegativeBinomialEvent&) const { return std::nullopt; }
  Found operator()(const TuningPoissonEvent&) const { return std::nullopt; }
};

std::optional<DominatingPair> pair_of(const Event& event, Adjacency adjacency) {
  const auto* bins = std::get_if<BallsInBinsGaussianEvent>(&event);
  if (bins != nullptr && has_loss_table(event, adjacency)) return balls_in_bins_pair(*bins);
  const auto cells = std::visit(CellsOf{adjacency}, event);
  return cells ? std::optional(dominating_pair_of(*cells)) : std::nullopt;
}

}  // namespace

bool has_loss_table(const Event& event, Adjacency adjacency) {
  const bool replace = adjacency == Adjacency::kReplaceOne;
  struct Has {
    bool replace;
    bool operator()(const GaussianEvent&) const { return false; }
    bool operator()(const PoissonGaussianEvent&) const { return replace; }
    bool operator()(const AdaptiveClippingEvent&) const { return replace; }
    bool operator()(const FixedSizeGaussianEvent&) const { return replace; }
    bool operator()(const TruncatedPoissonGaussianEvent&) const { return false; }
    bool operator()(const LaplaceEvent& e) const { return !replace || e.q.value() == 1; }
    bool operator()(const DiscreteLaplaceEvent& e) const { return !replace || e.q.value() == 1; }
    bool operator()(const DiscreteGaussianEvent& e) const { return !replace || e.q.value() == 1; }
    bool operator()(const ExponentialMechanismEvent&) const { return true; }
    bool operator()(const EpsilonDeltaEvent&) const { return true; }
    bool operator()(const ZcdpEvent&) const { return true; }
    bool operator()(const GroupPoissonGaussianEvent&) const { return !replace; }
    bool operator()(const MixtureOfGaussiansEvent&) const { return !replace; }
    bool operator()(const TreeAggregationEvent&) const { return false; }
    bool operator()(const BallsInBinsGaussianEvent& e) const { return e.steps > 1 && !replace; }
    bool operator()(const LossTableEvent&) const { return true; }
    bool operator()(const TuningNegativeBinomialEvent&) const { return true; }
    bool operator()(const TuningPoissonEvent&) const { return true; }
  };
  return std::visit(Has{replace}, event);
}

bool is_bounded_by_moments(const Event& event) { return std::holds_alternative<ZcdpEvent>(event) || is_tuning(event); }

std::shared_ptr<const DominatingPair> loss_table(const Event& event, Adjacency adjacency, const std::string& engine) {
  require_valid(event);
  static std::mutex mutex;
  static std::map<std::pair<EventKey, bool>, std::shared_ptr<const DominatingPair>> known;
  constexpr size_t kMostKept = 64;
  const std::pair key(key_of(event), adjacency == Adjacency::kReplaceOne);
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  auto pair = pair_of(event, adjacency);
  if (!pair) refuse_event(engine, event, adjacency);
  if (known.size() >= kMostKept) known.clear();
  return known[key] = std::make_shared<const DominatingPair>(*std::move(pair));
}

}  // namespace ghostshard::accountant
