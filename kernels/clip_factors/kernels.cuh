// Clip factors on the device: the formula of formula.h, one thread for each unit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/clip_factors/formula.h"

namespace ghostshard::kernels::device {

constexpr int kFactorThreads = 128;

inline __global__ void factors_of_units(const double* squared_norms, int64_t units, double limit, float* factors) {
  for (int64_t u = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; u < units;
       u += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    factors[u] = clip_factor(squared_norms[u], limit);
  }
}

}  // namespace ghostshard::kernels::device
