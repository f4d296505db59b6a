// Bounds of norms on the device: the formula of norm_bound.h, one thread to a unit.
#include "kernels/device/launch.cuh"
#include "kernels/norm_parts/bound.h"
#include "kernels/norm_parts/device.h"

namespace ghostshard::kernels::device {
namespace {

constexpr int kThreads = 128;

__global__ void bounds_of_units(Parts parts, int64_t units, double* bounds) {
  for (int64_t u = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; u < units;
       u += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    bounds[u] = norm_bound_sq(parts.value[u], parts.value_error[u], parts.mass[u], parts.sum_error[u]);
  }
}

}  // namespace

void norm_upper_bounds(const Parts& parts, int64_t units, double* bounds, Stream stream) {
  launch("bounds_of_units", bounds_of_units, {.work = blocks_of(units, kThreads), .threads = kThreads}, stream, parts,
         units, bounds);
}

}  // namespace ghostshard::kernels::device
