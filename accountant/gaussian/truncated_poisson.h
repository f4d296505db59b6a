// Truncated Poisson sampling as a mixture of pairs that dominates it (Ganesh 2025, arXiv:2508.15089).
//
// One unit x stands beside m others, each drawn with probability q; if more than `cap` are drawn, a uniformly chosen
// subset of `cap` of them is kept. Let X ~ Binomial(m, q) be how many others are drawn. Tell the adversary whether
// X >= cap; that has the same probability tau under both neighbours, so delta is the mean of both cases (joint
// convexity), and in a composition the coin is part of each outcome.
//   X < cap: x joins with probability q and displaces nobody: the Poisson-sampled Gaussian of q and sigma.
//   X >= cap: without x the batch is a uniform subset of `cap` others. With x, it is kept with probability
//     p = q·E[cap/(X+1) | X >= cap] = cap/(m+1)·P(Binomial(m+1, q) > cap)/tau
//   and then has cap - 1 others beside it, else the batch is as without x. One other less and x more moves the sum by
//   up to 2 norms: the sampled Gaussian of p and sigma/2.
// Both are attained, if every other contributes the opposite of what x does. So add-or-remove is
//   (1 - tau)·(q, sigma) + tau·(p, sigma/2),
// with m = units - 1 or units, as the data set is the larger or the smaller of the two neighbours.
//
// Under zero-out x keeps its place in the draw and contributes nothing: the same batch is released under both
// neighbours. Which others share it depends on whether x is in it, so that the case X >= cap is not one of
// amplification by sampling. There the adversary is told whether x was kept as well: (1 - tau)·(q, sigma) + tau·p·(1,
// sigma) + nothing. Where that is frequent, truncated_table.h has a pair that is closer, and no Gaussian one.
#pragma once

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

// others: m. Probabilities are rounded so that the mixture is less private than the event, p as well. Throws
// std::invalid_argument under replace-one, of which this says nothing.
ComposedRelease truncated_release(const TruncatedPoissonGaussianEvent& event, Adjacency adjacency, int64_t others,
                                  double count);

// Lower and upper bound of P(Binomial(n, q) >= k).
struct TailBracket {
  double lower, upper;
};
TailBracket binomial_tail(int64_t n, double q, int64_t k);

}  // namespace ghostshard::accountant
