// Weights to bfloat16 on the device: one thread for each element.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/keyed_rounding.h"

namespace ghostshard::kernels::device {

inline constexpr int kRoundingThreads = 256;

inline __global__ void __launch_bounds__(kRoundingThreads)
    round_elements(const float* values, uint32_t stream_of_bits, uint64_t first_element, uint16_t* stored, int64_t n) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    stored[i] =
        round_to_bfloat16(values[i], rounding_bits(stream_of_bits, first_element + static_cast<uint64_t>(i)) >> 16);
  }
}

}  // namespace ghostshard::kernels::device
