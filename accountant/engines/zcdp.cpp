#include "accountant/zcdp.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "accountant/gaussian/event_moment.h"
#include "accountant/gaussian/sampled_gaussian.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kTolerance = 1e-5;  // relative
constexpr size_t kMostOrders = 20'000;
constexpr double kFirstOrder = 1e-6;  // less 1

// rho of one execution, nothing if none is known.
//   Gaussians: 1/(2 sigma²), sigma in units of what a unit moves the sum by (Bun, Steinke 2016, Prop. 1.6); discrete
//     ones alike (Canonne, Kamath, Steinke 2020, Thm. 4). Sampled ones are mixtures of what a unit moves by this or
//     less and of what is the same: Rényi divergence is quasi-convex (van Erven, Harremoës 2014, Thm. 13).
//   epsilon-DP: epsilon²/2 (Bun, Steinke 2016, Prop. 1.4), of bounded range epsilon²/8 (Cesar, Rogers 2021,
//     arXiv:2004.07223).
struct RhoOf {
  using Found = std::optional<double>;
  Adjacency adjacency;

  double moved() const { return adjacency == Adjacency::kReplaceOne ? 2 : 1; }
  static double pure(double epsilon) { return epsilon * epsilon / 2; }
  Found gaussian(double shift, double sigma) const {
    const double ratio = shift * moved() / sigma;
    return ratio * ratio / 2;
  }
  Found operator()(const GaussianEvent& e) const { return gaussian(1, e.sigma.value()); }
  Found operator()(const PoissonGaussianEvent& e) const { return gaussian(1, e.sigma.value()); }
  Found operator()(const FixedSizeGaussianEvent& e) const {
    return adjacency == Adjacency::kReplaceOne ? gaussian(1, e.sigma.value()) : std::nullopt;
  }
  // A unit that is kept displaces another one.
  Found operator()(const TruncatedPoissonGaussianEvent& e) const { return gaussian(2, e.sigma.value()); }
  Found operator()(const AdaptiveClippingEvent& e) const {
    return gaussian(std::hypot(1 / e.sigma.value(), 1 / (2 * e.count_sigma.value())), 1);
  }
  Found operator()(const LaplaceEvent& e) const { return pure(moved() / e.scale.value()); }
  Found operator()(const DiscreteLaplaceEvent& e) const {
    return pure(moved() * e.a.value() * static_cast<double>(e.sensitivity));
  }
  Found operator()(const DiscreteGaussianEvent& e) const {
    return gaussian(static_cast<double>(e.sensitivity), e.deviation.value());
  }
  Found operator()(const ExponentialMechanismEvent& e) const { return pure(e.epsilon.value()) / 4; }
  Found operator()(const EpsilonDeltaEvent& e) const {
    return e.delta.value() == 0 ? Found(pure(e.epsilon.value())) : std::nullopt;
  }
  Found operator()(const ZcdpEvent& e) const { return e.rho.value(); }
  Found operator()(const GroupPoissonGaussianEvent& e) const {
    return gaussian(static_cast<double>(e.group), e.sigma.value());
  }
  Found operator()(const MixtureOfGaussiansEvent& e) const {
    return gaussian(*std::max_element(e.sensitivities.begin(), e.sensitivities.end()), e.deviation.value());
  }
  Found operator()(const TreeAggregationEvent& e) const {
    return gaussian(1, sampled_gaussian(e, Adjacency::kZeroOut, "zcdp").sigma);
  }
  // A mixture over the step that the unit is in.
  Found operator()(const BallsInBinsGaussianEvent& e) const { return gaussian(1, e.sigma.value()); }
  Found operator()(const LossTableEvent&) const { return std::nullopt; }
  Found operator()(const TuningNegativeBinomialEvent&) const { return std::nullopt; }
  Found operator()(const TuningPoissonEvent&) const { return std::nullopt; }
};

using Run = std::span<const std::pair<Event, int64_t>>;

// k(c) = c·RDP(1 + c) of all releases together, rounded up; of those with a xi without it. If a table leaves out
// infinite losses, however rare, its moment is none of the release's: then the closed form stands for it.
double log_moment_of(Run run, double c, Adjacency adjacency) {
  double k = 0;
  for (const auto& [event, count] : run) {
    const bool closed = std::holds_alternative<ZcdpEvent>(event) || infinite_loss(event, adjacency) > 0;
    const double one =
        closed ? c * (1 + c) * *std::visit(RhoOf{adjacency}, event) : event_log_moment(event, c, adjacency);
    k += static_cast<double>(count) * one;
  }
  return k * (1 + kRounding * (16 + static_cast<double>(run.size())));
}

// The orders 1 + a to 1 + b. k is convex and k(0) = 0, so between them it lies below the chord of its upper bounds.
struct Cell {
  double a, at_a, b, at_b;

  // An upper bound on the chord over c·(1 + c), whose only interior extremum is a root of a quadratic.
  double bound() const {
    const double slope = (at_b - at_a) / (b - a);
    if (a == 0) return slope;
    const double offset = at_a - slope * a;
    const auto value = [&](double c) { return (slope * c + offset) / (c * (1 + c)); };
    double most = std::max(at_a / (a * (1 + a)), at_b / (b * (1 + b)));
    if (offset < 0 && slope > 0) {
      const double c = (-offset + std::sqrt(offset * offset - slope * offset)) / slope;
      if (c > a && c < b) most = std::max(most, value(c) + 1e-12 * (slope * c - offset) / (c * (1 + c)));
    }
    return most;
  }
  bool operator<(const Cell& other) const { return bound() < other.bound(); }
};

double least_rho_below(Run run, Adjacency adjacency, double omega) {
  const auto k = [&](double c) { return log_moment_of(run, c, adjacency); };
  const double last = (omega - 1) * (1 + 4 * kRounding);
  std::priority_queue<Cell> cells;
  double attained = 0;
  const auto put = [&](const Cell& cell) {
    attained = std::max(attained, cell.at_b / (cell.b * (1 + cell.b)));
    cells.push(cell);
  };
  double a = 0;
  double at_a = 0;
  for (double b = std::min(kFirstOrder, last);; b = std::min(2 * b, last)) {
    const double at_b = k(b);
    if (!(at_b < kInfinity)) return kInfinity;
    put({a, at_a, b, at_b});
    if (b == last) break;
    a = b;
    at_a = at_b;
  }
  for (size_t orders = 0; orders < kMostOrders; ++orders) {
    const Cell widest = cells.top();
    if (widest.bound() <= attained * (1 + kTolerance)) break;
    const double middle = widest.a == 0 ? widest.b / 16 : std::sqrt(widest.a * widest.b);
    if (!(middle > widest.a && middle < widest.b && middle > 1e-14)) break;
    cells.pop();
    const double at_middle = k(middle);
    put({widest.a, widest.at_a, middle, at_middle});
    put({middle, at_middle, widest.b, widest.at_b});
  }
  return cells.top().bound() * (1 + 16 * kRounding);
}

// Each release's own rho, added up. Infinite if one has none.
double closed_form(Run run, Adjacency adjacency) {
  double rho = 0;
  for (const auto& [event, count] : run) {
    const auto one = std::visit(RhoOf{adjacency}, event);
    if (!one) return kInfinity;
    rho += static_cast<double>(count) * *one;
  }
  return rho * (1 + kRounding * (16 + static_cast<double>(run.size())));
}

void require_concentrated(Run run, Adjacency adjacency, bool truncated) {
  for (const auto& [event, count] : run) {
    require_valid(event);
    if (!(count >= 0)) throw std::invalid_argument("count must be >= 0, got " + std::to_string(count));
    const bool known = std::visit(RhoOf{adjacency}, event).has_value();
    if (known) continue;
    const bool moments = truncated && !is_tuning(event) && infinite_loss(event, adjacency) == 0;
    if (!moments)
      throw std::invalid_argument("a run in zCDP must be of releases that have a rho under " + to_string(adjacency) +
                                  " adjacency; " + type_name(event) + " has none" +
                                  (truncated ? "" : " for all orders: --omega may give one for some"));
  }
}

bool is_sampled(const Event& event) {
  return std::visit(
      [](const auto& any) {
        if constexpr (requires { any.q; })
          return any.q.value() < 1;
        else
          return requires { any.batch; };
      },
      event);
}

}  // namespace

ConcentratedBound concentrated_bound(Run run, Adjacency adjacency, std::optional<double> omega) {
  if (omega && !(*omega > 1 && *omega < kInfinity)) {
    std::ostringstream message;
    message << "omega must be finite and > 1, got " << *omega;
    throw std::invalid_argument(message.str());
  }
  require_concentrated(run, adjacency, omega.has_value());
  ConcentratedBound found;
  for (const auto& [event, count] : run)
    if (const auto* zcdp = std::get_if<ZcdpEvent>(&event)) found.xi += static_cast<double>(count) * zcdp->xi.value();
  found.xi *= 1 + kRounding * (8 + static_cast<double>(run.size()));
  found.rho = closed_form(run, adjacency);
  const bool sampled = std::any_of(run.begin(), run.end(), [](const auto& one) { return is_sampled(one.first); });
  found.detail = sampled ? "closed forms; sampling is not counted" : "closed forms";
  if (!omega) return found;
  const double truncated = least_rho_below(run, adjacency, *omega);
  if (!(truncated < found.rho)) return found;  // which holds for all orders
  found.rho = truncated;
  found.omega = *omega;
  found.detail = "truncated: the moments of all orders below omega";
  return found;
}

}  // namespace ghostshard::accountant
