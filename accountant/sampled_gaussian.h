// Exact facts about one Poisson-sampled Gaussian release: P = (1-q)·N(0, sigma²) + q·N(1, sigma²), Q = N(0,
// sigma²).
#pragma once

#include "accountant/events.h"

namespace ghostshard::accountant {

// The two parameters of any event; a Gaussian without sampling has q = 1.
struct SampledGaussian {
  double q;
  double sigma;
};
SampledGaussian sampled_gaussian(const Event& event);

// An epsilon that one execution certainly exceeds or equals at this delta: the hockey-stick divergence in
// closed form, both directions, rounding subtracted (so at most about 1e-9 relative below the exact epsilon).
// At most 600, beyond which e^epsilon leaves the range of the formula.
double single_release_epsilon_lower(SampledGaussian release, Delta delta);

// A certified upper bound on log E_Q[(P/Q)^(1+c)] (removing a unit) or log E_P[(Q/P)^(1+c)] (adding one), by
// self-checked quadrature; never above log1p(q·expm1(c(1+c)/(2 sigma²))).
enum class Direction { kRemove, kAdd };
double log_moment_upper(Direction direction, SampledGaussian release, double c);

}  // namespace ghostshard::accountant
