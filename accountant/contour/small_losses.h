// Where to cut losses for large_losses.h, and what the small ones alone can do: the delta of Π B, from above.
//
// B is the moment of a positive measure, so Chernoff's bound holds: delta_B(eps) <= κ(c')·e^(Σ T·log B(c') - c'·eps).
//   B(c') = ∫ N(x; 0, sigma²)·w^(1+c')·beta dx,  beta = 1 - (1 - y)^16,  y = e^(-s·v),
// by the trapezoid rule on the real axis. On the strip of half width d = theta·sigma², theta < pi/2, |w| is at most its
// value on the axis and |beta| = |y|·|1 + (1-y) + ... + (1-y)^15| <= 2^16·e^(-s·v·cos(theta)). So the rule errs by at
// most
//   2·2^16·e^(d²/(2 sigma²))·W/(e^(2 pi d/h) - 1),  W = ∫ N·w^(1+c')·e^(-s·v·cos(theta)) dx,
// and W is at most the sum over cells of the largest values in each.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

struct LossCut {
  double log_s;
  std::vector<bool> whole{};                         // phases of which nothing is cut: B is M, and G is 0
  std::vector<std::pair<double, double>> moments{};  // (c', Σ T·log B(c') rounded up)

  // log delta_B(epsilon), rounded up.
  double log_small(double epsilon) const;
};

// The least s, about, with delta_B(epsilon) <= e^(log_delta - digits). Nothing if none is found, or if a phase is not
// one pair sampled at a rate below 1. A unit is removed.
std::optional<LossCut> cut_losses(std::span<const ComposedRelease> phases, double epsilon, double log_delta,
                                  double digits);

// log B(c') of one execution, rounded up; +infinity says nothing.
double log_small_moment(SampledGaussian release, double count, double c, double log_s);

}  // namespace ghostshard::accountant
