// Exact facts about one Poisson-sampled Gaussian release: P = (1-q)·N(0, sigma²) + q·N(1, sigma²), Q = N(0,
// sigma²).
#pragma once

#include <string>

#include "accountant/events.h"

namespace ghostshard::accountant {

// A Gaussian without sampling has q = 1.
struct SampledGaussian {
  double q;
  double sigma;
};

// The pair of distributions that dominates the event under this adjacency. Replace-one moves an unsampled sum by twice
// the norm of a contribution, so sigma is halved. A tree of so many leaves is a Gaussian with sigma over the root of
// its levels. Throws std::invalid_argument with `engine`, event and adjacency if no pair of this family dominates the
// event: Poisson sampling under replace-one (its pair has three Gaussians), fixed-size sampling, and truncated sampling
// (which Accountant reduces to Poisson sampling beforehand). If sigma must be rounded, it is rounded down, or up if not
// less_private.
SampledGaussian sampled_gaussian(const Event& event, Adjacency adjacency, const std::string& engine,
                                 bool less_private = true);

// Throws std::invalid_argument for a sampled release whose sigma² is no double. No engine answers for one, whether or
// not it would come to the square.
void require_noise_with_a_square(SampledGaussian release);

// Below this sigma a release reveals nearly everything: one sampled release has an epsilon in the thousands, and the
// work of quadratures and grids grows with 1/sigma² without end. Engines then answer with the bound of sampling by
// convexity alone, which is sound and needs no quadrature.
constexpr double kLeastResolvedSigma = 0.01;

// A certified upper bound on log E_Q[(P/Q)^(1+c)] (removing a unit) or log E_P[(Q/P)^(1+c)] (adding one), by
// quadrature whose errors are bounded by proof (real_moment.cpp); never above log1p(q·expm1(c(1+c)/(2 sigma²))).
enum class Direction { kRemove, kAdd };
double log_moment_upper(Direction direction, SampledGaussian release, double c);

}  // namespace ghostshard::accountant
