// Truncated Poisson sampling under zero-out as a table of losses: tight where truncation is frequent, which the mixture
// of Gaussian pairs (truncated_poisson.h) is not.
//
// One unit x stands beside m others and keeps its place in the draw. As there, the adversary is told whether X >= cap
// of the others are drawn. Let C be a uniform subset of `cap` others, which is that of cap - 1 others, C', and one
// more, j. If X >= cap, x is kept with probability p beside C', and else C is the batch; so with x zeroed. Tell the
// adversary C' and j as well, which have the same law under both neighbours (joint convexity), and take off what C'
// contributes:
//   P = (1-p)·N(a, sigma²) + p·N(b, sigma²),  Q = (1-p)·N(a, sigma²) + p·N(0, sigma²),
// a and b the contributions of j and x, of norm at most 1. That is what drawing without replacement leads to, with
// batches of which x is a part with probability p (laws.cpp, without_replacement_losses): N(b) and N(a) are at most 2
// apart, N(b) and N(0), and N(0) and N(a), at most 1. So the pair of that function at the rate p dominates (P, Q).
#pragma once

#include <memory>

#include "accountant/events.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

// Less private than the event under zero-out; what is more private is the Poisson sampling of X < cap alone. The same
// event gives the same object.
std::shared_ptr<const DominatingPair> truncated_table(const TruncatedPoissonGaussianEvent& event);

}  // namespace ghostshard::accountant
