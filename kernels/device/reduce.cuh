// Sums over a block, in an order that does not depend on how the block is scheduled.
#pragma once

#include <cuda_runtime.h>

namespace ghostshard::kernels::device {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

template <int kThreads>
struct BlockSum {
  static_assert(kThreads % kWarp == 0);
  double of_warp[kThreads / kWarp];
};

__device__ __forceinline__ double warp_sum(double x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, distance);
  }
  return x;
}

// Called by all threads of the block; thread 0 gets the sum. The scratch may be used again at once.
template <int kThreads>
__device__ double block_sum(BlockSum<kThreads>& scratch, double x) {
  x = warp_sum(x);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % kWarp == 0) {
    scratch.of_warp[threadIdx.x / kWarp] = x;
  }
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (const double part : scratch.of_warp) {
      sum += part;
    }
  }
  return sum;
}

}  // namespace ghostshard::kernels::device
