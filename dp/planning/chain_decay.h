// The decay of a noise chain (dp/mechanism/noise_chain.h) that serves a run's schedule best. It is chosen from public
// numbers and changes no guarantee.
//
// The optimizer is taken as linear, as in dp/planning/band_coefficients.h: after step t the weights have moved by
// Σ_j A_{t,j}·x_j. In chains of b steps with p = j mod b and s_p² = Σ_{i<b−p} λ^{2i}, fresh noise z_j has the factor
// V_{t,j} = s_p·A_{t,j} − λ·s_{p+1}·A_{t,j+1}, without the second term at a chain's end and for j = t, so the mean
// squared error per sigma² is F(λ) = (1/T)·Σ_t Σ_{j≤t} V_{t,j}².
#pragma once

#include <cstdint>
#include <vector>

#include "dp/planning/band_coefficients.h"

namespace ghostshard::dp {

// F, 0 ≤ decay ≤ 1; of more than 1,024 steps the mean over every so manieth t. O(T·min(T, 1024)).
// std::invalid_argument for an impossible workload, or unless 1 ≤ b ≤ T.
double chain_error(int64_t steps_of_chain, double decay, const BandWorkload& workload);

// The multiple of 1/4096 in (0, 1] with the least F, or with the least mean of log F over the parameters, if they
// differ in their workloads; 0 for chains of one step.
double optimal_chain_decay(int64_t steps_of_chain, const std::vector<WorkloadShare>& shares);
inline double optimal_chain_decay(int64_t steps_of_chain, const BandWorkload& workload) {
  return optimal_chain_decay(steps_of_chain, std::vector<WorkloadShare>{{workload}});
}

}  // namespace ghostshard::dp
