// Bounds of norms on the device: the formula of bound.h, one thread for each unit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/types.h"
#include "kernels/norm_parts/bound.h"

namespace ghostshard::kernels::device {

constexpr int kBoundThreads = 128;

inline __global__ void bounds_of_units(Parts parts, int64_t units, double* bounds) {
  for (int64_t u = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; u < units;
       u += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    bounds[u] = norm_bound_sq(parts.value[u], parts.value_error[u], parts.mass[u], parts.sum_error[u]);
  }
}

inline __global__ void sums_of_bounds(Parts parts, int64_t parameters, int64_t units, double* sums) {
  for (int64_t u = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; u < units;
       u += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    double sum = 0;
    for (int64_t i = u; i < parameters * units; i += units) {
      sum += norm_bound_sq(parts.value[i], parts.value_error[i], parts.mass[i], parts.sum_error[i]);
    }
    sums[u] = sum;
  }
}

}  // namespace ghostshard::kernels::device
