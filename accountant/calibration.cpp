#include "accountant/calibration.h"
#include "accountant/shown.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

constexpr double kRelative = 1e-7;
constexpr double kBinsRelative = 1e-4;  // an evaluation takes tenths of a second
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kQuickIsEnough = 1e-3;  // of the target: a quick bracket wider than this leads no nearer

EpsilonBound bound(const Budget& budget, const Event& event, int64_t steps, Effort effort) {
  const auto engine = make_accountant(budget.accountant, budget.adjacency);
  engine->compose(event, steps);
  return engine->epsilon(budget.delta, effort);
}

EpsilonBound bound(const Budget& budget, double q, double sigma, int64_t steps, Effort effort) {
  return bound(budget, PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}, steps, effort);
}

// The least y in [lowest, highest] with epsilon(y) <= target, to `tolerance`: some y at most that much below exceeds
// the target, or would by the slope seen so far, or lies below `lowest`. Nothing if the highest still exceeds it.
// epsilon falls with y, but for the errors of its bounds. The search goes by secants in log epsilon, aimed a little to
// the side of the root that keeps the target, and by bisection; the bound at the y returned was seen to keep the
// target.
struct Search {
  double guess, step;  // where to begin, and how far beyond the secant's root to go first
  double slope;        // of log epsilon, until two points give it
  double tolerance;
  double lowest, highest;
};
struct Found {
  double y, slope;
};
template <class EpsilonAt>  // EpsilonBound (y), of which only `upper` is looked at
std::optional<Found> least(const Search& search, double target, bool stop_where_wide, const EpsilonAt& epsilon_at) {
  struct Seen {
    double y, excess;  // log(epsilon/target)
  };
  std::optional<Seen> exceeds;
  std::optional<Seen> kept;
  Seen nearest{0, kInfinity};
  const double nudge = 0.3 * search.tolerance;
  double slope = search.slope;
  double y = std::clamp(search.guess, search.lowest, search.highest);
  double step = search.step;
  double width_before = kInfinity;
  for (int i = 0;; ++i) {
    const EpsilonBound bound = epsilon_at(y);
    const double ratio = std::log(bound.upper / target);
    const Seen seen{y, bound.upper <= target ? std::min(0.0, ratio) : ratio};
    // From the nearest two, unless noise in the bounds decides.
    if (std::isfinite(seen.excess) && std::isfinite(nearest.excess)) {
      const double between = (seen.excess - nearest.excess) / (seen.y - nearest.y);
      if (between < 0.1 * slope && between > 20 * slope) slope = between;
    }
    if (std::abs(seen.excess) <= std::abs(nearest.excess)) nearest = seen;
    (seen.excess <= 0 ? kept : exceeds) = seen;
    if (kept && kept->y <= search.lowest) return Found{kept->y, slope};
    if (exceeds && exceeds->y >= search.highest) return std::nullopt;
    const double root = std::isfinite(nearest.excess) ? nearest.y - std::clamp(nearest.excess / slope, -2.0, 2.0) : y;
    if (seen.excess <= 0 && -seen.excess <= 0.5 * search.tolerance * std::abs(slope)) return Found{y, slope};
    if (!exceeds || !kept) {
      const double above = root + nudge;
      const double further = kept ? (above < kept->y ? above : kept->y - step) : std::max(root, exceeds->y) + step;
      y = std::clamp(further, search.lowest, search.highest);
      step *= 8;
      continue;
    }
    const double width = kept->y - exceeds->y;
    const bool wide = stop_where_wide && bound.upper - bound.lower > std::abs(bound.upper - target) &&
                      bound.upper - bound.lower > kQuickIsEnough * target;
    if (width <= search.tolerance) return Found{kept->y, slope};
    if (wide) return Found{std::clamp(root, exceeds->y, kept->y), slope};
    const double middle = exceeds->y + width / 2;
    const double aimed = root + (root > middle ? -nudge : nudge);
    const bool inside = aimed > exceeds->y && aimed < kept->y;
    y = inside && (i % 3 != 2 || width < width_before / 8) ? aimed : middle;
    if (i % 3 == 2) width_before = width;
  }
}

// That the target is kept is seen of the reported number itself; it is hardly ever above the one that was searched.
template <class EpsilonAt>  // EpsilonBound (y, Effort)
std::optional<double> kept_from(double y, double further, double highest, double target, const EpsilonAt& epsilon_at) {
  for (; !(epsilon_at(y, Effort::kTight).upper <= target); further *= 2) {
    if (y >= highest) return std::nullopt;
    y = std::min(y + further, highest);
  }
  return y;
}

// The y at which the quick bound meets the target; from there the one at which the reported number does.
template <class EpsilonAt>  // EpsilonBound (y, Effort)
std::optional<double> least(double guess, double lowest, double highest, double target, const EpsilonAt& epsilon_at) {
  const auto coarse = least({guess, 0.3, -1, 0.01 * kRelative, lowest, highest}, target, true,
                            [&](double y) { return epsilon_at(y, Effort::kQuick); });
  const Found near = coarse.value_or(Found{highest, -1});
  const auto found = least({near.y, 0.15 * kRelative, near.slope, 0.4 * kRelative, lowest, highest}, target, false,
                           [&](double y) { return epsilon_at(y, Effort::kUpper); });
  if (!found) return std::nullopt;
  return kept_from(found->y, 0.05 * kRelative, highest, target, epsilon_at);
}

void require_steps(int64_t steps) {
  if (!(steps > 0)) throw std::invalid_argument("steps must be > 0, got " + std::to_string(steps));
}

void require_positive_target(const Budget& budget) {
  if (!(budget.epsilon.value() > 0))
    throw std::invalid_argument(
        "target epsilon must be > 0, got 0: such a budget is one of delta alone, and delta at epsilon 0 answers it");
}

[[noreturn]] void unreachable(const Budget& budget, const std::string& with, double reached) {
  std::ostringstream message;
  message << "target epsilon must be reachable with " << with << ": at this one epsilon is still " << reached
          << ", the target is " << budget.epsilon.value();
  throw std::invalid_argument(message.str());
}

}  // namespace

NoiseMultiplier calibrate_noise(const Budget& budget, SamplingRate q, int64_t steps) {
  return calibrate_noise(
      budget,
      [q](NoiseMultiplier sigma) {
        return PoissonGaussianEvent{q, sigma};
      },
      steps);
}

NoiseMultiplier calibrate_noise(const Budget& budget, const std::function<Event(NoiseMultiplier)>& event,
                                int64_t steps) {
  require_steps(steps);
  require_positive_target(budget);
  const double lowest = std::log(kSmallestSigma);
  const auto sigma_at = [&](double y) { return y <= lowest ? kSmallestSigma : std::min(std::exp(y), kLargestSigma); };
  const auto found = least(0, lowest, std::log(kLargestSigma), budget.epsilon.value(), [&](double y, Effort effort) {
    return bound(budget, event(NoiseMultiplier(sigma_at(y))), steps, effort);
  });
  if (!found)
    unreachable(budget, "a noise multiplier <= 1e+06",
                bound(budget, event(NoiseMultiplier(kLargestSigma)), steps, Effort::kTight).upper);
  return NoiseMultiplier(sigma_at(*found));
}

NoiseMultiplier calibrate_bins_noise(const Budget& budget, int64_t bins, int64_t passes) {
  if (!(passes > 0)) throw std::invalid_argument("passes must be > 0, got " + std::to_string(passes));
  if (!(bins > 0 && bins <= kMostBins))
    throw std::invalid_argument("bins must lie between 1 and " + std::to_string(kMostBins) + ", got " +
                                std::to_string(bins));
  require_positive_target(budget);
  const double largest = bins == 1 ? kLargestSigma : kMostBinsNoise;
  const double lowest = std::log(kLeastBinsNoise);
  const auto sigma_at = [&](double y) { return y <= lowest ? kLeastBinsNoise : std::min(std::exp(y), largest); };
  const auto epsilon_at = [&](double y, Effort effort) {
    return bound(budget, BallsInBinsGaussianEvent{bins, NoiseMultiplier(sigma_at(y))}, passes, effort);
  };
  const double highest = std::log(largest);
  const double target = budget.epsilon.value();
  const auto found = least({0, 0.3, -1, 0.8 * kBinsRelative, lowest, highest}, target, false,
                           [&](double y) { return epsilon_at(y, Effort::kUpper); });
  const auto y = found ? kept_from(found->y, 0.1 * kBinsRelative, highest, target, epsilon_at) : std::nullopt;
  if (!y) {
    std::ostringstream range;
    range << "a noise multiplier <= " << largest;
    unreachable(budget, range.str(), epsilon_at(highest, Effort::kTight).upper);
  }
  return NoiseMultiplier(sigma_at(*y));
}

NoiseMultiplier calibrate_noise(const std::string& accountant, Adjacency adjacency, Epsilon target, Delta delta,
                                SamplingRate q, int64_t steps) {
  return calibrate_noise(Budget{accountant, adjacency, target, delta}, q, steps);
}

int64_t affordable_cap(const Budget& budget, int64_t units, SamplingRate q, int64_t steps, double extra) {
  if (!(extra > 0 && extra < 1))
    throw std::invalid_argument("the extra noise must be above 0 and below 1, got " + shown(extra));
  const NoiseMultiplier sigma(calibrate_noise(budget, q, steps).value() * (1 + extra));
  const auto is_kept = [&](int64_t cap) {
    const TruncatedPoissonGaussianEvent event{units, q, cap, sigma};
    return bound(budget, event, steps, Effort::kUpper).upper <= budget.epsilon.value();
  };
  const double mean = static_cast<double>(units) * q.value();
  int64_t too_small = std::max<int64_t>(0, static_cast<int64_t>(std::ceil(mean)) - 1);
  int64_t kept = too_small + 1;
  for (int64_t stride = 1 + static_cast<int64_t>(std::sqrt(mean)); !is_kept(kept); stride *= 2) {
    if (kept == units)
      throw std::invalid_argument("truncated sampling cannot be bounded by the accountant " + budget.accountant);
    too_small = kept;
    kept = std::min(units, kept + stride);
  }
  while (kept - too_small > 1) {
    const int64_t middle = too_small + (kept - too_small) / 2;
    (is_kept(middle) ? kept : too_small) = middle;
  }
  return kept;
}

SamplingRate calibrate_sampling_rate(const Budget& budget, NoiseMultiplier sigma, int64_t steps) {
  require_steps(steps);
  require_positive_target(budget);
  const auto rate_at = [](double y) { return std::clamp(std::exp(-y), kSmallestRate, 1.0); };
  const auto found = least(3, 0, -std::log(kSmallestRate), budget.epsilon.value(), [&](double y, Effort effort) {
    return bound(budget, rate_at(y), sigma.value(), steps, effort);
  });
  if (!found)
    unreachable(budget, "a sampling rate >= 1e-12",
                bound(budget, kSmallestRate, sigma.value(), steps, Effort::kTight).upper);
  return SamplingRate(rate_at(*found));
}

int64_t calibrate_steps(const Budget& budget, SamplingRate q, NoiseMultiplier sigma) {
  // The most in [1, kMostSteps] that a falling predicate allows, 0 if not even one, from `guess` outwards.
  const auto most = [](int64_t guess, const auto& allows) -> int64_t {
    int64_t allowed = 0;
    int64_t too_many = kMostSteps + 1;
    int64_t steps = std::clamp<int64_t>(guess, 1, kMostSteps);
    for (int64_t stride = 1; too_many - allowed > 1; stride = std::min(2 * stride, kMostSteps)) {
      if (allows(steps)) {
        allowed = steps;
        steps = too_many > kMostSteps ? std::min(steps + stride, kMostSteps) : allowed + (too_many - allowed) / 2;
      } else {
        too_many = steps;
        steps = allowed == 0 ? std::max<int64_t>(steps - stride, 1) : allowed + (too_many - allowed) / 2;
      }
    }
    return allowed;
  };
  const auto about = [&](int64_t steps) {
    return bound(budget, q.value(), sigma.value(), steps, Effort::kQuick).upper <= budget.epsilon.value();
  };
  return most(most(1, about), [&](int64_t steps) {
    return bound(budget, q.value(), sigma.value(), steps, Effort::kTight).upper <= budget.epsilon.value();
  });
}

}  // namespace ghostshard::accountant
