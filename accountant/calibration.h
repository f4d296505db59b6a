// The least noise that keeps a run within its budget.
#pragma once

#include <cstdint>
#include <string>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

// Smallest sigma (to 1e-6 relative, rounded to the private side: epsilon(sigma).upper <= target) for `steps`
// Poisson-sampled Gaussian steps. Not below 0.01: where that already meets the target, 0.01 is returned.
// Throws std::invalid_argument for steps < 1, and saying what is reachable if no sigma <= 1e6 suffices.
NoiseMultiplier calibrate_noise(const std::string& accountant, Adjacency adjacency, Epsilon target, Delta delta,
                                SamplingRate q, int64_t steps);

}  // namespace ghostshard::accountant
