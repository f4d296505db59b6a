// Clip factors: the launch of the kernel in kernels.cuh.
#include "kernels/clip_factors/kernels.cuh"

#include "kernels/clip_factors/device.h"
#include "kernels/device/launch.cuh"

namespace ghostshard::kernels::device {

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes factors
void clip_factors(const double* squared_norms, int64_t units, double limit, float* factors, Stream stream) {
  launch("factors_of_units", factors_of_units, {.work = blocks_of(units, kFactorThreads), .threads = kFactorThreads},
         stream, squared_norms, units, limit, factors);
}

}  // namespace ghostshard::kernels::device
