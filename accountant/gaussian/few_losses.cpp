#include "accountant/gaussian/few_losses.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

using Phases = std::vector<ComposedRelease>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kMargin = 1e-9;  // relative, of a tail: its exponent, some hundreds at most, is rounded
constexpr double kLeastTail = 1e-290;
constexpr double kLargestLevel = 1e6;  // at sigma = kLeastResolvedSigma an outcome 80 sigma away reveals less

struct Tails {
  double p, q;  // probabilities of the same outcomes, of all whose loss exceeds a level, under both neighbours
};
// They may be a few more outcomes: with much noise the least rounding of a logarithm is some deviations' 1e-9.
Tails tails(SampledGaussian release, double level) {
  const auto [q, sigma] = release;
  const double log_weight = log_expm1_plus(level, q);
  const double rounding = kRounding * (8 + 2 * std::abs(log_weight) + 2 * std::abs(std::log(q)));
  const double t = sigma * sigma * (log_weight - std::log(q) - rounding) + 0.5;
  const double zero = std::exp(log_upper_tail(t / sigma));
  return {(1 - q) * zero + q * std::exp(log_upper_tail((t - 1) / sigma)), zero};
}

// Sum over all executions: at most, and about, the probability that any loss exceeds the level.
double expected_above(const Phases& phases, double level) {
  double sum = 0;
  for (const ComposedRelease& phase : phases) sum += phase.count * tails(phase.release, level).p;
  return sum * (1 + kMargin);
}

// The least level, but for little, at which a falling function of it is at most `most`.
template <class Falling>
double level_where(const Falling& falling, double most) {
  double low = -90;  // of its logarithm
  double high = std::log(kLargestLevel);
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (falling(std::exp(middle)) > most ? low : high) = middle;
  }
  return std::exp(high);
}

double epsilon_of_one_bit(const Phases& phases, double level, double delta) {
  double none_p = 0;  // log of the probability that no loss exceeds it
  double none_q = 0;
  for (const ComposedRelease& phase : phases) {
    const Tails one = tails(phase.release, level);
    none_p += phase.count * std::log1p(-std::min(one.p * (1 - kMargin), 1.0));
    none_q += phase.count * std::log1p(-std::min(one.q * (1 + kMargin), 1.0));
  }
  const double gain = -std::expm1(none_p) * (1 - kMargin) - delta * (1 + kMargin);
  const double any_q = -std::expm1(none_q) * (1 + kMargin);
  return gain > 0 && any_q > kLeastTail ? std::log(gain / any_q) - 1e-15 : 0;
}

double lower_end(const Phases& phases, double delta) {
  const auto above = [&](double level) { return expected_above(phases, level); };
  double best = 0;
  // The best level leaves a probability of some times delta.
  for (double excess = 0.02; excess < 30; excess += std::min(0.25 * excess, 0.3))
    best = std::max(best, epsilon_of_one_bit(phases, level_where(above, delta * std::exp(excess)), delta));
  return best;
}

double upper_end(const Phases& phases, double delta) {
  if (!(delta > kLeastTail)) return kInfinity;  // the squares below would lose their digits
  double count = 0;
  for (const ComposedRelease& phase : phases) count += phase.count;
  const auto two = [&](double level) {
    const double expected = expected_above(phases, level);
    return expected * expected / 2;
  };
  const auto one = [&](double epsilon) {
    double sum = 0;
    for (const ComposedRelease& phase : phases)
      sum += phase.count * single_release_delta(Direction::kRemove, phase.release, epsilon).upper;
    return sum * (1 + kMargin);
  };
  double best = kInfinity;
  for (const double share : {0.5, 0.1, 0.01}) {
    const double level = level_where(two, share * delta);
    const double left = (delta - two(level)) * (1 - kMargin);
    if (!(left > 0)) continue;
    double alone = 0;
    if (!(one(0) <= left)) {
      alone = level_where(one, left);
      if (!(one(alone) <= left)) continue;
    }
    best = std::min(best, std::max(alone + (count - 1) * level, count * level) * (1 + 1e-14));
  }
  return best;
}

}  // namespace

double few_losses_delta(const Phases& phases, double epsilon) {
  double count = 0;
  for (const ComposedRelease& phase : phases) count += phase.count;
  double best = 1;
  for (const double share : {1.0, 0.5}) {
    const double level = share * epsilon / count * (1 - 1e-14);
    double alone = 0;
    for (const ComposedRelease& phase : phases)
      alone +=
          phase.count *
          single_release_delta(Direction::kRemove, phase.release, (epsilon - (count - 1) * level) * (1 - 1e-14)).upper;
    const double two = expected_above(phases, level);
    best = std::min(best, (alone + two * two / 2) * (1 + kMargin) + kLeastTail);
  }
  return best;
}

Bracket few_losses_epsilon(const Phases& phases, Delta delta) {
  return {lower_end(phases, delta.value()), upper_end(phases, delta.value())};
}

DirectionBound few_losses_bound(const Phases& phases, Delta delta) {
  const auto [lower, upper] = few_losses_epsilon(phases, delta);
  return {lower, lower + (upper - lower) / 2, upper, "closed forms of few large losses"};
}

}  // namespace ghostshard::accountant
