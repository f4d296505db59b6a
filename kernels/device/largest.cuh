// The largest magnitude of a block's numbers. As integers magnitudes have the same order, and the order of comparisons
// does not matter; a NaN counts more than any number.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/reduce.cuh"

namespace ghostshard::kernels::device {

// In shared memory: the largest of each warp, by its bits.
template <int kThreads>
struct WarpMaxima {
  static_assert(kThreads % kWarp == 0);
  int32_t of_warp[kThreads / kWarp];
};

__device__ __forceinline__ int32_t magnitude_bits(float x) { return __builtin_bit_cast(int32_t, x) & 0x7fffffff; }

__device__ __forceinline__ int32_t warp_max(int32_t x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const int32_t other = __shfl_xor_sync(kWholeWarp, x, distance);
    x = other > x ? other : x;
  }
  return x;
}

template <int kThreads>
__device__ __forceinline__ float largest(const WarpMaxima<kThreads>& maxima) {
  int32_t most = 0;
  for (const int32_t part : maxima.of_warp) most = part > most ? part : most;
  return __builtin_bit_cast(float, most);
}

}  // namespace ghostshard::kernels::device
