// Clip factors on the device: the formula of clip_factor.h, one thread to a unit.
#include "kernels/clip_factors/device.h"
#include "kernels/clip_factors/formula.h"
#include "kernels/device/launch.cuh"

namespace ghostshard::kernels::device {
namespace {

constexpr int kThreads = 128;

__global__ void factors_of_units(const double* squared_norms, int64_t units, double limit, float* factors) {
  for (int64_t u = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; u < units;
       u += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    factors[u] = clip_factor(squared_norms[u], limit);
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes factors
void clip_factors(const double* squared_norms, int64_t units, double limit, float* factors, Stream stream) {
  launch("factors_of_units", factors_of_units, {.work = blocks_of(units, kThreads), .threads = kThreads}, stream,
         squared_norms, units, limit, factors);
}

}  // namespace ghostshard::kernels::device
