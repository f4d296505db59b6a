// The least noise, the largest sampling rate, the most steps that keep a run within its budget.
//
// Every result is on the private side: with it, epsilon(delta).upper <= target. The search goes by secants, first of
// quick bounds. The result stands on the upper bound itself: it kept the target there, and either exceeded it close by
// or came so near to it that it must. Throws std::invalid_argument for steps < 1, for a
// target of 0 if noise or rate are sought (the search goes by the logarithm of epsilon), and if no value in the allowed
// range meets the target; the message then says what is reachable.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

// The target, and how it is accounted. Each step releases one Poisson-sampled Gaussian.
struct Budget {
  std::string accountant = "contour";
  Adjacency adjacency = Adjacency::kZeroOut;
  Epsilon epsilon{1};
  Delta delta{1e-6};
};

// The searches end here: an answer at an end says no more than that the true one lies there or beyond.
inline constexpr double kLargestSigma = 1e6;
inline constexpr double kSmallestSigma = 0.01;  // below it every epsilon is astronomical and no noise worth choosing
inline constexpr double kSmallestRate = 1e-12;
inline constexpr int64_t kMostSteps = int64_t{1} << 40;

// The smallest sigma for `steps` steps, at most 1e-7 relative above the least that the accountant allows. Between 0.01
// and 1e6: if 0.01 already meets the target, 0.01 is returned.
NoiseMultiplier calibrate_noise(const Budget& budget, SamplingRate q, int64_t steps);
// The same for steps of another kind: `event` with the noise multiplier that is sought. Epsilon must not grow with it.
NoiseMultiplier calibrate_noise(const Budget& budget, const std::function<Event(NoiseMultiplier)>& event,
                                int64_t steps);
// The same; order of arguments as in the first version of this interface.
NoiseMultiplier calibrate_noise(const std::string& accountant, Adjacency adjacency, Epsilon target, Delta delta,
                                SamplingRate q, int64_t steps);

// The same for `passes` passes over the data with balls-in-bins sampling, each in `bins` steps: at most 1e-4 relative
// above the least, and between 0.05 and 1000 (1e6 if a pass has one step). std::invalid_argument for bins that no
// BallsInBinsGaussianEvent has.
NoiseMultiplier calibrate_bins_noise(const Budget& budget, int64_t bins, int64_t passes);
// The smallest cap of truncated Poisson sampling (arXiv:2508.15089) that keeps the budget with at most 1 + extra times
// the noise that it takes without truncation. At least units·q, the mean. Throws std::invalid_argument as
// calibrate_noise does, for an engine or adjacency that cannot bound truncated sampling, and unless 0 < extra < 1.
int64_t affordable_cap(const Budget& budget, int64_t units, SamplingRate q, int64_t steps, double extra = 1e-3);

// The largest q, at most 1e-7 relative below the greatest that the accountant allows; 1 if no sampling is needed. Not
// below 1e-12.
SamplingRate calibrate_sampling_rate(const Budget& budget, NoiseMultiplier sigma, int64_t steps);

// The most steps, exactly; 0 if not even one is allowed. At most 2^40.
int64_t calibrate_steps(const Budget& budget, SamplingRate q, NoiseMultiplier sigma);

}  // namespace ghostshard::accountant
