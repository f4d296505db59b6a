// Bounds by closed forms alone for runs in which hardly any execution tells anything: few steps at tiny rates, delta
// far below what a transform rounds. Removing a unit; adding one has a largest loss.
//
//   At least what an observer learns who is told no more than whether any loss exceeds a level (post-processing): with
//   A_P and A_Q the probabilities of that, eps >= log((A_P - delta)/A_Q).
//   At most: of n executions let N have a loss above s. N = 0: all losses together are at most n·s. N = 1: the others
//   add at most (n-1)·s to it. N >= 2: with probability (Σ p(s))²/2 at most. So for every eps >= n·s
//     delta(eps) <= Σ delta_i(eps - (n-1)·s) + (Σ p_i(s))²/2,  delta_i: of execution i alone (single_release.h).
#pragma once

#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/direction_bound.h"
#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {

// The epsilon of all phases lies inside; the upper end is +infinity where losses are too frequent to be told apart so.
Bracket few_losses_epsilon(const std::vector<ComposedRelease>& phases, Delta delta);

// The same as a bound of one direction; the estimate is the middle.
DirectionBound few_losses_bound(const std::vector<ComposedRelease>& phases, Delta delta);

}  // namespace ghostshard::accountant
