// The outputs and decays of noise buffers (dp/mechanism/noise_blt.h) that serve a run's schedule best. They are chosen
// from public numbers and change no guarantee.
//
// The optimizer is taken as linear, as in dp/planning/band_coefficients.h. With c_0 = 1, c_i = Σ_j ω_j·θ_j^(i−1) and s
// the norm of the rows that one unit's steps, b apart, add up to (accountant/blt_rows.h), the mean squared error per
// sigma² is
//
//   F(ω, θ) = s² · (1/T)·Σ_t ‖(A·R⁻¹)_t‖²,    R = Toeplitz(1, c_1, …, c_{T−1})
//
// (arXiv:2408.08868, section 4, for any workload A).
#pragma once

#include <cstdint>
#include <vector>

#include "dp/planning/band_coefficients.h"

namespace ghostshard::dp {

struct BltCoefficients {
  std::vector<double> outputs, decays;  // ω and θ, equally many
};

// F and its derivatives by the outputs, then by the decays, in O(T²). std::invalid_argument for an impossible workload,
// no buffer, outputs and decays of different numbers, or b < 1.
struct BltError {
  double error;
  std::vector<double> slopes;
};
BltError blt_error_and_slopes(const BltCoefficients& blt, int64_t separation, const BandWorkload& workload);

// A local minimum of F over 0 < ω < 1, 0 < θ ≤ 0.9999, by BFGS from buffers whose coefficients are near those of the
// square root of the prefix sums. 1 ≤ buffers ≤ 16, b ≥ 1 (std::invalid_argument). Of more than 1,024 steps every so
// manieth rate counts, for a run of as many steps with the same b: near the optimum where b is small against that. If
// parameters differ in their workloads, the mean of log F over the parameters is minimised.
BltCoefficients optimal_blt(int64_t buffers, int64_t separation, const std::vector<WorkloadShare>& shares);
inline BltCoefficients optimal_blt(int64_t buffers, int64_t separation, const BandWorkload& workload) {
  return optimal_blt(buffers, separation, std::vector<WorkloadShare>{{workload}});
}

}  // namespace ghostshard::dp
