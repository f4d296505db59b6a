// Chernoff's bound on delta for composed releases, and the points where it and the integrals on a vertical line are
// best.
//
// With K(c) = log E[e^(c·loss)] of all executions together and any c > 0,
//   delta(eps) <= κ(c)·e^(K(c) - c·eps),  κ(c) = c^c/(1+c)^(1+c).
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

// log κ(c), to some roundings of itself.
inline double log_kappa(double c) { return -c * std::log1p(1 / c) - std::log1p(c); }

// Rounded up: e^(log of this) >= κ(c)·e^(k - c·eps), whatever the signs. Each of the three numbers errs by a rounding
// or a few of its own size.
inline double log_chernoff(double c, double k, double epsilon) {
  const double kappa = log_kappa(c);
  const double roundings = 1 + std::abs(k) + 2 * c * std::abs(epsilon) + 4 * std::abs(kappa);
  return k - c * epsilon + kappa + 4 * std::numeric_limits<double>::epsilon() * roundings;
}

// log M and its derivatives, summed over all executions of all phases, with the error of all.
RealMoment composed_moment(Direction direction, std::span<const ComposedRelease> phases, double c);
// The same of moments that are known: each[i] is phases[i]'s, of one execution.
RealMoment composed_of(std::span<const ComposedRelease> phases, std::span<const RealMoment> each);

// The logarithm of Chernoff's bound on delta(epsilon) at this c, rounded up.
double chernoff_log_delta(Direction direction, std::span<const ComposedRelease> phases, double c, double epsilon);

// The point c > 0 where M(c)·e^(-c·eps)/(c(c+1)) is least at this epsilon: K'(c) - 1/c - 1/(1+c) = eps.
// Nothing if it lies above 65536: hardly any loss can be as large as this epsilon.
std::optional<double> saddle_of_epsilon(Direction direction, std::span<const ComposedRelease> phases, double epsilon);

// The saddle point of the epsilon >= 0 at which the saddle-point approximation of delta is e^log_delta.
struct Saddle {
  double c;
  double epsilon;
};
std::optional<Saddle> saddle_of_delta(Direction direction, std::span<const ComposedRelease> phases, double log_delta);

}  // namespace ghostshard::accountant
