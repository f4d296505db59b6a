#include "accountant/gaussian/single_release.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/gaussian/least_double.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();

constexpr double kMostRelative = 0.25;  // of both terms together, beyond which their difference says nothing

// How far the logarithms may be off: `size` bounds the numbers that were added up to make them.
double rounding_of(double size) { return kRounding * 16 * (2 + size); }

// At most e^gain, which is all that is known of a difference whose terms have lost their digits.
Bracket at_most(double gain, double rounding) {
  const double most = std::exp(gain + rounding) * (1 + 4 * kRounding) + 2 * kLeast;
  return {0, most <= 1 ? most : 1};  // a NaN says nothing
}

// e^gain - e^loss with the roundings of both.
Bracket difference(double gain, double loss, double size) {
  const double relative = rounding_of(size);
  if (!(relative <= kMostRelative)) return at_most(gain, relative);
  const double high = std::exp(gain);
  const double low = std::exp(loss);
  const double value = loss < gain ? high * -std::expm1(loss - gain) : 0.0;
  const double error = std::expm1(relative) * (high + low) + 8 * kLeast;
  return {std::clamp(value - error, 0.0, 1.0), std::clamp(value + error, 0.0, 1.0)};
}

}  // namespace

double log_expm1_plus(double x, double q) {
  if (x > 40) return x + std::log1p((q - 1) * std::exp(-x));
  // Below -1/2 the second form cancels less: q is above 0.39 wherever it is positive, and 1 - q loses nothing.
  const double value = x < -0.5 ? std::exp(x) - (1 - q) : std::expm1(x) + q;
  return value > 0 ? std::log(value) : -kInfinity;
}

// From 20 on by the continued fraction of Mills' ratio, which then has
// converged to a rounding after 20 terms.
double log_upper_tail(double x) {
  if (x < 20) return std::log(0.5 * std::erfc(x / std::sqrt(2.0)));
  double fraction = x;
  for (int k = 20; k >= 1; --k) fraction = x + k / fraction;
  return -x * x / 2 - 0.918938533204672741780329736406 - std::log(fraction);
}

namespace {

Bracket removing_delta(SampledGaussian release, double epsilon) {
  const auto [q, sigma] = release;
  const double log_weight = log_expm1_plus(epsilon, q);  // log(e^eps - 1 + q)
  if (log_weight == -kInfinity) {                        // below the least loss: every outcome counts
    const double value = -std::expm1(epsilon);
    return {std::max(0.0, value * (1 - 4 * kRounding)), std::min(1.0, value * (1 + 4 * kRounding))};
  }
  const double t = sigma * sigma * (log_weight - std::log(q)) + 0.5;
  const double gain = std::log(q) + log_upper_tail((t - 1) / sigma);
  const double loss = log_weight + log_upper_tail(t / sigma);
  const double square = std::max(t * t, (t - 1) * (t - 1)) / (sigma * sigma);
  return difference(gain, loss, std::abs(std::log(q)) + std::abs(log_weight) * (1 + std::abs(t)) + square);
}

// The two terms if a unit is added, by the logarithm of w = e^-eps - 1 + q, which has lost `cancelled` digits:
// 1 - e^eps(1-q) = e^eps·w.
struct AddedTerms {
  double gain, loss, size;
};
AddedTerms added_terms(SampledGaussian release, double epsilon, double log_weight, double cancelled) {
  const auto [q, sigma] = release;
  const double t = sigma * sigma * (log_weight - std::log(q)) + 0.5;
  const double square = std::max(t * t, (t - 1) * (t - 1)) / (sigma * sigma);
  return {epsilon + log_weight + log_upper_tail(-t / sigma), epsilon + std::log(q) + log_upper_tail(-(t - 1) / sigma),
          std::abs(epsilon) + std::abs(std::log(q)) +
              (std::abs(log_weight) + cancelled) * (1 + std::abs(t) + sigma * sigma) + square};
}

Bracket adding_delta(SampledGaussian release, double epsilon) {
  const double q = release.q;
  if (q == 1) {
    const AddedTerms terms = added_terms(release, epsilon, -epsilon, 1);
    return difference(terms.gain, terms.loss, terms.size);
  }
  // In the form that cancels less.
  const bool near_one = q > 0.5;
  const double weight = near_one ? std::exp(-epsilon) - (1 - q) : std::expm1(-epsilon) + q;
  const double size = near_one ? std::exp(-epsilon) + (1 - q) : std::abs(std::expm1(-epsilon)) + q;
  if (weight > 0) {
    const AddedTerms terms = added_terms(release, epsilon, std::log(weight), size / weight);
    if (rounding_of(terms.size) <= kMostRelative) return difference(terms.gain, terms.loss, terms.size);
  }
  // Close to the largest loss hardly a digit of w is left. delta is at most its first term, which grows with w.
  const double most = weight + 2 * kRounding * size;
  if (!(most > 0)) return {0, 0};
  const AddedTerms largest = added_terms(release, epsilon, std::log(most), 1);
  return at_most(largest.gain, rounding_of(largest.size));
}

}  // namespace

Bracket single_release_delta(Direction direction, SampledGaussian release, double epsilon) {
  return direction == Direction::kRemove ? removing_delta(release, epsilon) : adding_delta(release, epsilon);
}

namespace {

// Σ mass·(1 - e^(epsilon - loss))+ of a table, with the infinite loss: each term errs by a few roundings of itself and
// of its exponent, their sum by one for each term.
Bracket table_delta(Direction direction, const ComposedRelease& phase, double epsilon) {
  const auto sum = [&](const LossAtoms& atoms, double sign) {
    double total = 0;
    double terms = 16;
    for (size_t i = atoms.loss.size(); i > 0 && atoms.loss[i - 1] > epsilon; --i, ++terms)
      total += atoms.mass[i - 1] * -std::expm1(epsilon - atoms.loss[i - 1]);
    return total * (1 + sign * kRounding * terms) + (sign > 0 ? atoms.infinite : 0) + sign * (terms - 16) * kLeast;
  };
  return {std::max(0.0, sum(phase.atoms(direction, false), -1)), std::min(1.0, sum(phase.atoms(direction, true), 1))};
}

}  // namespace

Bracket single_phase_delta(Direction direction, const ComposedRelease& phase, double epsilon) {
  if (phase.is_table()) return table_delta(direction, phase, epsilon);
  if (!phase.is_mixture()) return single_release_delta(direction, phase.release, epsilon);
  const double nothing = phase.nothing * std::max(0.0, -std::expm1(epsilon));
  Bracket sum{nothing, nothing};
  const auto add = [&](double weight, SampledGaussian release) {
    const Bracket one = single_release_delta(direction, release, epsilon);
    sum.lower += weight * one.lower;
    sum.upper += weight * one.upper;
  };
  add(phase.weight, phase.release);
  for (const auto& [weight, release] : phase.alternatives) add(weight, release);
  const double lost = kLeast * static_cast<double>(phase.alternatives.size() + 4);
  return {std::max(0.0, sum.lower * (1 - 16 * kRounding) - lost),
          std::min(1.0, sum.upper * (1 + 16 * kRounding) + lost)};
}

namespace {

// The epsilon where delta, which `at` brackets, falls to this one.
template <class At>
Bracket epsilon_where(const At& at, Delta delta) {
  // delta falls with epsilon. `exceeds` is certain for lower, the negation of `may_exceed` for upper.
  const auto solve = [&](auto exceeds) {
    if (!exceeds(0.0)) return std::pair{0.0, 0.0};
    double low = 0;
    double high = 1;
    while (exceeds(high)) {
      low = high;
      if (high > 1e300) return std::pair{high, kInfinity};
      high *= 2;
    }
    while (true) {
      const double middle = low + (high - low) / 2;
      if (!(middle > low && middle < high) || high - low < 1e-15 * high) break;
      (exceeds(middle) ? low : high) = middle;
    }
    return std::pair{low, high};
  };
  return {solve([&](double epsilon) { return at(epsilon).lower >= delta.value(); }).first,
          solve([&](double epsilon) { return at(epsilon).upper > delta.value(); }).second};
}

}  // namespace

Bracket single_release_epsilon(Direction direction, SampledGaussian release, Delta delta) {
  return epsilon_where([&](double epsilon) { return single_release_delta(direction, release, epsilon); }, delta);
}

Bracket single_phase_epsilon(Direction direction, const ComposedRelease& phase, Delta delta) {
  return epsilon_where([&](double epsilon) { return single_phase_delta(direction, phase, epsilon); }, delta);
}

double single_release_epsilon_lower(SampledGaussian release, Delta delta) {
  return std::max(single_release_epsilon(Direction::kRemove, release, delta).lower,
                  single_release_epsilon(Direction::kAdd, release, delta).lower);
}

}  // namespace ghostshard::accountant
