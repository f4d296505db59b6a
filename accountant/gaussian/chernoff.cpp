#include "accountant/gaussian/chernoff.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kLargestIntercept = 2e4;

}  // namespace

RealMoment composed_moment(Direction direction, std::span<const ComposedRelease> phases, double c) {
  std::vector<RealMoment> each;
  each.reserve(phases.size());
  for (const ComposedRelease& phase : phases) each.push_back(moment_of_phase(direction, phase, c));
  return composed_of(phases, each);
}

RealMoment composed_of(std::span<const ComposedRelease> phases, std::span<const RealMoment> each) {
  RealMoment total{0, 0, 0};
  for (size_t i = 0; i < phases.size(); ++i) {
    total.log_m += phases[i].count * each[i].log_m;
    total.mean += phases[i].count * each[i].mean;
    total.variance += phases[i].count * each[i].variance;
    total.error += phases[i].count * each[i].error;
  }
  // No log M is negative: M is convex, M(0) = 1, and its slope there is a Kullback-Leibler divergence. So each of the
  // additions errs by a rounding of the total at most.
  total.error = 1.01 * total.error + kRounding * (2 + static_cast<double>(phases.size())) * std::abs(total.log_m);
  return total;
}

double chernoff_log_delta(Direction direction, std::span<const ComposedRelease> phases, double c, double epsilon) {
  const RealMoment moment = composed_moment(direction, phases, c);
  return log_chernoff(c, moment.log_m + moment.error, epsilon);
}

namespace {

// Root in log c of a rising function of (c, moments at c), by bisection and secant steps.
template <class Function>
std::optional<double> rising_root(Direction direction, std::span<const ComposedRelease> phases, Function function) {
  const auto at = [&](double c) { return function(c, composed_moment(direction, phases, c)); };
  double low = 1;
  double high = 1;
  double at_low = at(1);
  double at_high = at_low;
  if (at_low < 0) {
    while (at_high < 0) {
      if (high > kLargestIntercept) return std::nullopt;
      low = high;
      at_low = at_high;
      high *= 4;
      at_high = at(high);
    }
  } else {
    while (at_low >= 0) {
      if (low < 1e-12) return low;
      high = low;
      at_high = at_low;
      low /= 4;
      at_low = at(low);
    }
  }
  for (int i = 0; i < 12 && high > low * 1.02; ++i) {
    double share = at_low / (at_low - at_high);  // secant in log c, kept away from the ends
    if (!(share > 0.1 && share < 0.9) || i % 3 == 2) share = 0.5;
    const double middle = low * std::pow(high / low, share);
    const double value = at(middle);
    (value < 0 ? low : high) = middle;
    (value < 0 ? at_low : at_high) = value;
  }
  return std::sqrt(low * high);
}

}  // namespace

std::optional<double> saddle_of_epsilon(Direction direction, std::span<const ComposedRelease> phases, double epsilon) {
  return rising_root(direction, phases,
                     [&](double c, const RealMoment& m) { return m.mean - 1 / c - 1 / (1 + c) - epsilon; });
}

std::optional<Saddle> saddle_of_delta(Direction direction, std::span<const ComposedRelease> phases, double log_delta) {
  const auto epsilon_at = [](double c, const RealMoment& m) { return m.mean - 1 / c - 1 / (1 + c); };
  const auto c = rising_root(direction, phases, [&](double at, const RealMoment& m) {
    const double epsilon = epsilon_at(at, m);
    const double width = 2 * std::numbers::pi * (m.variance + 1 / (at * at) + 1 / ((1 + at) * (1 + at)));
    return log_delta - (m.log_m - at * epsilon - std::log(at) - std::log1p(at) - 0.5 * std::log(width));
  });
  if (!c) return std::nullopt;
  // Near a phase transition of K the approximation says little, Chernoff's bound still does: delta lies below it by a
  // factor between e and e^15 in all but odd cases, and a Newton step leads from there.
  double bound = kInfinity;
  for (const double share : {0.8, 0.9, 0.97, 1.0, 1.1, 1.25})
    bound = std::min(bound, (composed_moment(direction, phases, *c * share).log_m + log_kappa(*c * share) - log_delta) /
                                (*c * share));
  const double approximate = epsilon_at(*c, composed_moment(direction, phases, *c));
  const double epsilon = std::clamp(approximate, std::min(bound, bound - 15 / *c), bound - 1 / *c);
  if (epsilon >= 0) return Saddle{*c, epsilon};
  const auto at_zero = saddle_of_epsilon(direction, phases, 0);
  if (!at_zero) return std::nullopt;
  return Saddle{*at_zero, 0};
}

}  // namespace ghostshard::accountant
