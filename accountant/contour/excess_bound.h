// How far the moment of one release is from 1, for complex rates and noises: where that is below 1, its logarithm is
// analytic.
//
// In the notation of sigma_rule.h let M(z; v, q) = ∫ k_v(u)·w(u)^p du, w = 1 - q + q·e^u, v = 1/sigma². It is analytic
// in v and q where Re(1/v) > 0, |q| < 1 and |arg q| < pi/2: with q = |q|·e^(i·phi), 0 <= psi <= phi,
//   w(u - i·psi) = 1 - q + |q|·e^(u + i(phi - psi))  has a positive real part,
// so that the path of integration may be moved down by phi, where w = 1 - q + |q|·e^u differs from the w of |q| by
// |q|·|1 - e^(i·phi)| alone. With v = |v|·e^(i·theta), v' = |v|/cos(theta), completing the square gives
//   |k_v(u - i·phi)| = C·(the density of N(phi·tan(theta) - v'/2, v')),
//   log C = phi²/(2v'·cos²(theta)) - phi·tan(theta)/2 + v'·sin²(theta)/8 - log(cos(theta))/2.
// So |M - 1| <= C·E|f(w)|, f(w) = w^p - 1 - p(w - 1), with e^u = e^(phi·tan(theta))·y, log y ~ N(-v'/2, v').
//
// f(1) = f'(1) = 0. Along the segment from 1 to w, whose length is D = |w - 1|, at the distance x from 1,
//   |f''| <= a·|s|^(Re p - 2), a = |z(z+1)|·e^(tA);  |f'| <= |p|·(1 + |s|^(Re p - 1)·e^(tA)),
// A >= |arg s|: A = q·sin(phi)/(1 - q). The second bound is for large x: there f turns, and grows no more. If a unit is
// removed |s| is at most 1 + x, and at least 1 - q, which counts if c < 1. If one is added |s| >= 1 - x, and |s| >= 1
// where e^u >= 1. So |f| <= H(D) with H' the lesser of both, taken at one x_1 for the change from the first to the
// second: H' rises, H is convex. For all angles up to phi and theta, with T = e^(phi·tan(theta)),
//   D <= q·(|y - 1| + (T - 1)·y + phi),
// which is convex in y, and so is H(D). E[y] = 1 whatever v' is, and a larger v' is a larger y in convex order: so
// E[H] rises with v', as it does with q, t, phi and theta. One number bounds a whole neighbourhood of (v, q).
//
// E[H] is the sum over cells of u of probability times the larger end's H: H(D) falls up to y = 1 and rises from there.
// Beyond the last cell H <= K·(1 + D)^b, b = 1 + c or 1, whose mean over a tail is closed.
#pragma once

#include "accountant/gaussian/sampled_gaussian.h"

namespace ghostshard::accountant {

// All v and q with |v| between these, |q| at most this, and angles up to these.
struct ComplexReleases {
  double least_v, most_v;
  double theta;    // of v
  double most_q;   // below 1
  double phi = 0;  // of q; 0: q is real
};

// An upper bound on C, whatever the angles.
double density_factor(const ComplexReleases& releases);

// An upper bound on |M(c + it'; v, q) - 1| for 0 <= t' <= t and all of these; +infinity says nothing. c > 0.
double excess_bound(Direction direction, double c, double t, const ComplexReleases& releases);

}  // namespace ghostshard::accountant
