// Noise: the launch of the kernel in kernels.cuh.
#include "kernels/gaussian/kernels.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/gaussian/device.h"

namespace ghostshard::kernels::device {

void add_gaussian(const ChaChaKeyWords& key, uint32_t parameter, uint64_t first, float scale, float* out,
                  uint64_t count, Stream stream) {
  if (count == 0) {
    return;
  }
  const uint64_t blocks = (first + (count - 1)) / kBlockElements - first / kBlockElements + 1;
  launch("gaussian", gaussian,
         {.work = blocks_of(static_cast<int64_t>(blocks), kGaussianThreads), .threads = kGaussianThreads}, stream,
         {.key = key, .parameter = parameter, .first = first, .scale = scale, .out = out, .count = count});
}

}  // namespace ghostshard::kernels::device
