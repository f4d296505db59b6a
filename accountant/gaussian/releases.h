// The charges of an accountant as composed Poisson-sampled Gaussians.
#pragma once

#include <string>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

// Two lists of releases between which the charges lie. Upper ends come from the first, lower ends from the second. They
// are the same unless sigma had to be rounded, or there are too many distinct releases.
struct ReleaseBracket {
  std::vector<ComposedRelease> less_private, more_private;
  bool exact() const;
};

// One entry per distinct pair (q, sigma), and one for all unsampled Gaussians together (their 1/sigma² add up). The
// entries are ordered by q and sigma, so that the same run charged in another order gives the same bits. If there are
// more than `most` sampled ones, those with nearly the same q and sigma are put together, so that no more than
// `together` are left: under their largest q and least sigma, and under their least q and largest sigma.
//
// That these bound the charges: let a larger sigma and a smaller q be given. Noise of variance sigma'² - sigma² added
// to the outcome turns (P, Q) of sigma into that of sigma'. And keeping the outcome with probability q'/q, drawing one
// from Q otherwise, turns (P, Q) of q into that of q'. Neither needs to know which of the two neighbours it was
// (post-processing), in one release as in a composition, adaptively chosen or not.
ReleaseBracket composed_releases(const std::vector<Charge>& charges, Adjacency adjacency, const std::string& engine,
                                 size_t most, size_t together, bool larger_neighbour = false);

// Truncated Poisson sampling stands in the less private list alone (truncated_poisson.h): lower ends are those of the
// other releases. larger_neighbour: the unit that is added or removed comes on top of the event's units; under
// add-or-remove the larger epsilon of both counts.
bool has_truncated(const std::vector<Charge>& charges);

// The less private list under zero-out with a table for each truncated event (truncated_table.h).
std::vector<ComposedRelease> with_truncated_tables(const std::vector<Charge>& charges, const std::string& engine,
                                                   size_t most, size_t together);

// Whether some release is a table, which only a grid can compose.
bool has_table(const std::vector<ComposedRelease>& phases);
// The probability of an infinite loss in any of the tables' executions, rounded up: no epsilon has a smaller delta.
double infinite_mass(const std::vector<ComposedRelease>& phases);

// Whether epsilon is 0 at this delta by total variation alone; false says nothing.
// The total variation of all releases together is at most the sum of each one's, however they are composed, and that of
// a sampled pair q times that of its Gaussians, 2·Phi(1/(2 sigma)) - 1. It is delta at epsilon = 0, in both directions.
// A factor for up to a million roundings.
bool costs_nothing(const std::vector<ComposedRelease>& phases, Delta delta);

// Whether the sigma of some sampled release is below kLeastResolvedSigma.
bool beyond_resolution(const std::vector<ComposedRelease>& phases);

// The largest loss in the direction where a unit is added: -Σ count·log(1-q), rounded up; +infinity with an unsampled
// Gaussian or a table. At this epsilon and above, delta is 0 in that direction.
double largest_loss_of_adding(const std::vector<ComposedRelease>& phases);

// Whether delta at this epsilon is certainly at most e^log_delta in the direction where a unit is added, by the largest
// loss or by Chernoff's bound. If so, the direction where a unit is removed decides.
bool adding_is_no_worse(const std::vector<ComposedRelease>& phases, double epsilon, double log_delta);

}  // namespace ghostshard::accountant
