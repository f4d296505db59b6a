// The ratios of noise bands (dp/mechanism/noise_bands.h) that serve a run's schedule best. They are chosen from public
// numbers and change no guarantee.
//
// The optimizer is taken as linear: step s moves the weights by η_s·Σ_{i≤s} β^{s−i}·(noise of step i), the learning
// rate times a momentum of the noise. (Adam divides by the root of its second moment, which is nearly constant.) After
// step t the weights have moved by Σ_i A_{t,i}·x_i with A_{t,i} = Σ_{s=i}^{t} η_s·β^{s−i}. With the column-normalised
// Toeplitz matrix C of the first column c·(1, a_1, …, a_{b−1}) that has the mean squared error
//
//   F(a) = (1 + Σ a_k²) · (1/T)·Σ_t ‖(A·R⁻¹)_t‖²,    R = Toeplitz(1, a_1, …, a_{b−1}),
//
// per sigma², which the ratios minimise (arXiv:2306.08153, section 5; with η = 1, β = 0 the prefix sums).
#pragma once

#include <cstdint>
#include <vector>

namespace ghostshard::dp {

struct BandWorkload {
  std::vector<double> rates;  // η_s, one per step, finite and > 0
  double momentum = 0;        // β, 0 ≤ β < 1
};

// Throws std::invalid_argument unless there are rates and all numbers are as above.
void check_workload(const BandWorkload& workload);

// Parameters with one workload. Their share of all that are trained: > 0, in any unit.
struct WorkloadShare {
  BandWorkload workload;
  double share = 1;
};
// Throws std::invalid_argument unless there is one, shares are finite and > 0, and all workloads have equally many
// rates.
void check_shares(const std::vector<WorkloadShare>& shares);

inline constexpr int64_t kMostPlannedSteps = 1024;  // that coefficients are chosen by

// Of more than `most` steps every so manieth, so that the shape of the schedule stays.
BandWorkload thinned(const BandWorkload& workload, int64_t most);

// F and its derivative by each ratio, in O(T²). std::invalid_argument for an empty or impossible workload, or as many
// ratios as steps.
struct BandError {
  double error;
  std::vector<double> slopes;
};
BandError band_error_and_slopes(const std::vector<double>& ratios, const BandWorkload& workload);

// The ratios a_1 … a_{b−1} that minimise F, by BFGS from those of the square root of the prefix sums, (2k)!/(4^k·k!²).
// 1 ≤ bands ≤ T (std::invalid_argument). Of more than 1,024 steps every so manieth counts. If parameters differ in
// their workloads, the mean of log F over the parameters is minimised: an F matters relative to what it could be, as
// the units of rates differ between optimizers.
std::vector<double> optimal_band_ratios(int64_t bands, const std::vector<WorkloadShare>& shares);
inline std::vector<double> optimal_band_ratios(int64_t bands, const BandWorkload& workload) {
  return optimal_band_ratios(bands, std::vector<WorkloadShare>{{workload}});
}

}  // namespace ghostshard::dp
