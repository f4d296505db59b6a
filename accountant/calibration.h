// The least noise, the largest sampling rate, the most steps that keep a run within its budget.
//
// Every result is on the private side: with it, epsilon(delta).upper <= target. Secants lead there, first of quick
// bounds; what counts is that the upper bound itself kept the target there, and exceeded it close by or comes so near
// to it that it must. Throws std::invalid_argument for steps < 1 and, saying what is reachable, where no value in the
// allowed range meets the target.
#pragma once

#include <cstdint>
#include <string>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

// What is released in each step, up to the unknown: Poisson-sampled Gaussians.
struct Budget {
  std::string accountant = "contour";
  Adjacency adjacency = Adjacency::kZeroOut;
  Epsilon epsilon{1};
  Delta delta{1e-6};
};

// Smallest sigma for `steps` steps, at most 1e-7 relative above the least that the accountant allows. Not below 0.01:
// where that already meets the target, 0.01 is returned. Not above 1e6.
NoiseMultiplier calibrate_noise(const Budget& budget, SamplingRate q, int64_t steps);
// The same; order of arguments as in the first version of this interface.
NoiseMultiplier calibrate_noise(const std::string& accountant, Adjacency adjacency, Epsilon target, Delta delta,
                                SamplingRate q, int64_t steps);

// Largest q, at most 1e-7 relative below the greatest that the accountant allows; 1 where no sampling is needed.
// Not below 1e-12.
SamplingRate calibrate_sampling_rate(const Budget& budget, NoiseMultiplier sigma, int64_t steps);

// Most steps, exactly; 0 where not even one is allowed. At most 2^40.
int64_t calibrate_steps(const Budget& budget, SamplingRate q, NoiseMultiplier sigma);

}  // namespace ghostshard::accountant
