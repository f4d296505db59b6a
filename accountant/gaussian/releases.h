// The charges of an accountant as composed Poisson-sampled Gaussians.
#pragma once

#include <string>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

// One entry per distinct pair (q, sigma), and one for all unsampled Gaussians together (their 1/sigma² add up). The
// entries are ordered by q and sigma, so that the same run charged in another order gives the same bits.
std::vector<ComposedRelease> composed_releases(const std::vector<Charge>& charges, Adjacency adjacency,
                                               const std::string& engine);

// Whether the sigma of some sampled release is below kLeastResolvedSigma.
bool beyond_resolution(const std::vector<ComposedRelease>& phases);

// The largest loss in the direction where a unit is added: -Σ count·log(1-q), rounded up; +infinity with an unsampled
// Gaussian. At this epsilon and above, delta is 0 in that direction.
double largest_loss_of_adding(const std::vector<ComposedRelease>& phases);

// Whether delta at this epsilon is certainly at most e^log_delta in the direction where a unit is added, by the largest
// loss or by Chernoff's bound. If so, the direction where a unit is removed decides.
bool adding_is_no_worse(const std::vector<ComposedRelease>& phases, double epsilon, double log_delta);

}  // namespace ghostshard::accountant
