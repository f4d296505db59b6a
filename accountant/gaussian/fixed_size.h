// Rényi differential privacy of a Gaussian on a batch of fixed size drawn without replacement, replace-one: Wang,
// Balle, Kasiviswanathan 2019 (arXiv:1808.00087, Thm. 9 / Thm. 27 of the long version), with gamma = batch/units and
// eps(j) = j·(2/sigma)²/2 of the unsampled Gaussian, whose sum moves by twice the norm of a contribution:
//   A(alpha) <= 1 + gamma² C(alpha,2) min{4(e^eps(2) - 1), 2 e^eps(2)} + Σ_{j=3..alpha} 2 gamma^j C(alpha,j) e^((j-1)
//   eps(j))
#pragma once

#include "accountant/events.h"

namespace ghostshard::accountant {

// log A at alpha = 1 + c, rounded up. Whole orders follow the theorem, with log A = 0 at alpha = 1. Between them log A
// is convex in alpha, so the chord lies above it. The result is never above the unsampled Gaussian's.
double fixed_size_log_moment(const FixedSizeGaussianEvent& event, double c);

}  // namespace ghostshard::accountant
