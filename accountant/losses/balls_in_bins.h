// Balls-in-bins sampling (Chua et al. 2025, arXiv:2412.16802): of the t steps of a pass over the data each unit is in
// exactly one, uniformly random and independent of all others.
#pragma once

#include "accountant/events.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

// The pair that dominates one pass of t = `steps` sums, each with noise multiplier sigma, for removing, adding and
// zeroing out a unit: P = (1/t)·Σ N(e_i, sigma²I), Q = N(0, sigma²I), loss log S with
//   S = (1/t)·Σ_i exp(x_i/sigma² - 1/(2 sigma²)).
// Its tables are certainly less and certainly more private; balls_in_bins.cpp has the proofs. Their roundings are
// derived within the event's limits (event_rules.cpp; std::invalid_argument otherwise). Below a delta of 1.6e-23 there
// is no finite bound. Some 4·log2(t) convolutions of 2048 cells.
DominatingPair balls_in_bins_pair(const BallsInBinsGaussianEvent& event);

}  // namespace ghostshard::accountant
