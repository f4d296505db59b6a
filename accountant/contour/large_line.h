// What a line of large losses alone is made of (large_losses.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "accountant/contour/large_losses.h"
#include "accountant/contour/phase_moment.h"
#include "accountant/contour/small_losses.h"

namespace ghostshard::accountant {

inline constexpr int64_t kCostOfNode = 100;  // of a line, beside its sums

// Of the phases that are cut, in turn. None if they would need too many nodes.
std::vector<LargeLosses> large_losses(std::span<const ComposedRelease> phases, double c, const LossCut& cut);

// About how many terms all sweeps along n nodes add up.
double work_of_large(std::span<const ComposedRelease> phases, std::span<const PhaseMoment> moments,
                     std::span<const LargeLosses> large, const LossCut& cut, double step, size_t n);

// An upper bound on log |D(c + it')/Π M(c)| for all t' >= t.
double log_rest_of(std::span<const LargeLosses> large, double t);

}  // namespace ghostshard::accountant
