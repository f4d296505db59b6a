// Weights to bfloat16: the launch of the kernel in kernels.cuh.
#include "kernels/device/launch.cuh"
#include "kernels/rounded_weights/device.h"
#include "kernels/rounded_weights/kernels.cuh"

namespace ghostshard::kernels::device {

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes what is stored
void round_weights(const float* values, uint32_t stream_of_bits, uint64_t first_element, uint16_t* stored, int64_t n,
                   Stream stream) {
  launch("round_elements", round_elements, {.work = blocks_of(n, kRoundingThreads), .threads = kRoundingThreads},
         stream, values, stream_of_bits, first_element, stored, n);
}

}  // namespace ghostshard::kernels::device
