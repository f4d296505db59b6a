// Bounds by closed forms alone, for runs in which hardly any execution reveals anything: few steps at tiny rates, with
// delta far below the rounding of a transform. They hold for removing a unit; adding one has a largest loss.
//
//   Lower end. An observer who learns only whether any loss exceeds a level knows less than the run reveals
//   (post-processing). With A_P and A_Q the probabilities that some loss does, eps >= log((A_P - delta)/A_Q).
//   Upper end. Of n executions let N have a loss above s. If N = 0, all losses together are at most n·s. If N = 1, the
//   others add at most (n-1)·s to it. N >= 2 has probability (Σ p(s))²/2 at most. So for every eps >= n·s
//     delta(eps) <= Σ delta_i(eps - (n-1)·s) + (Σ p_i(s))²/2,  delta_i: of execution i alone (single_release.h).
#pragma once

#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/direction_bound.h"
#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {

// The epsilon of all phases lies inside. The upper end is +infinity if losses are too frequent for this argument.
Bracket few_losses_epsilon(const std::vector<ComposedRelease>& phases, Delta delta);

// An upper bound on delta at this epsilon > 0, by the same argument; 1 says nothing.
double few_losses_delta(const std::vector<ComposedRelease>& phases, double epsilon);

// The same as a bound of one direction; the estimate is the middle.
DirectionBound few_losses_bound(const std::vector<ComposedRelease>& phases, Delta delta);

}  // namespace ghostshard::accountant
