// One execution of a Poisson-sampled Gaussian in closed form: its privacy loss is monotone in the outcome x, so the
// worst set is a half-line (q = 1: Balle, Wang 2018, arXiv:1805.06530, Thm. 8). With t the threshold where the loss
// equals epsilon and Q the upper tail of the standard normal,
//   remove: delta = q·Q((t-1)/sigma) - (e^eps - 1 + q)·Q(t/sigma),           t = sigma² log((e^eps - 1 + q)/q) + 1/2
//   add:    delta = (1 - e^eps(1-q))·Q(-t/sigma) - e^eps·q·Q(-(t-1)/sigma),  t = sigma² log((e^-eps - 1 + q)/q) + 1/2
// and zero for add from eps = -log(1-q) on. All in logarithms: nothing overflows, delta = 1e-300 keeps its digits.
#pragma once

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

// The logarithm of the standard normal's upper tail, even if the tail itself is too small for a double.
double log_upper_tail(double z);

// log(e^x - 1 + q), which is q times the odds of the outcome whose loss is x; -infinity unless e^x > 1 - q. Holds for
// every x: e^x alone overflows a double from 709.78 on.
double log_expm1_plus(double x, double q);

struct Bracket {
  double lower;
  double upper;
};

// delta at an epsilon, which may be any finite number: a part of a composition may have a negative share. The exact
// value lies inside; the width is the rounding of both terms.
Bracket single_release_delta(Direction direction, SampledGaussian release, double epsilon);

// epsilon >= 0 at a delta, for one direction.
Bracket single_release_epsilon(Direction direction, SampledGaussian release, Delta delta);

// The same of a phase that is executed once. Of a mixture delta is the mean of its pairs', as the coin is seen;
// of a table, a sum.
Bracket single_phase_delta(Direction direction, const ComposedRelease& phase, double epsilon);
Bracket single_phase_epsilon(Direction direction, const ComposedRelease& phase, Delta delta);

// A lower bound on the epsilon of one execution at this delta, the larger of both directions.
double single_release_epsilon_lower(SampledGaussian release, Delta delta);

}  // namespace ghostshard::accountant
