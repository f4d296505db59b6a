// Noise: the launch of the kernel in kernels.cuh.
#include "kernels/gaussian/kernels.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/gaussian/device.h"

namespace ghostshard::kernels::device {

void add_gaussian(const ChaChaKeyWords& key, std::span<const GaussianRange> ranges, float scale, Stream stream) {
  GaussianWork work = {.key = key, .scale = scale};
  int64_t blocks = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto& [parameter, first, out, count] = ranges[i];
    if (count != 0) {
      const uint64_t of_keystream = (first + (count - 1)) / kBlockElements - first / kBlockElements + 1;
      blocks += blocks_of(static_cast<int64_t>(of_keystream), kGaussianThreads);
      work.range[work.ranges] = ranges[i];
      work.end[work.ranges++] = blocks;
    }
    if (work.ranges == kMostRanges || i + 1 == ranges.size()) {
      launch("gaussian", gaussian, {.work = blocks, .threads = kGaussianThreads}, stream, work);
      work.ranges = 0;
      blocks = 0;
    }
  }
}

}  // namespace ghostshard::kernels::device
