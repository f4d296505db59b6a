// Bounds of norms: the launch of the kernel in kernels.cuh.
#include "kernels/norm_parts/kernels.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/norm_parts/device.h"

namespace ghostshard::kernels::device {

void norm_upper_bounds(const Parts& parts, int64_t units, double* bounds, Stream stream) {
  launch("bounds_of_units", bounds_of_units, {.work = blocks_of(units, kBoundThreads), .threads = kBoundThreads},
         stream, parts, units, bounds);
}

void sums_of_norm_bounds(const Parts& parts, int64_t parameters, int64_t units, double* sums, Stream stream) {
  launch("sums_of_bounds", sums_of_bounds, {.work = blocks_of(units, kBoundThreads), .threads = kBoundThreads}, stream,
         parts, parameters, units, sums);
}

}  // namespace ghostshard::kernels::device
