// Moves the operands of a product through shared memory: a ring of stages, each a step of the depth. While one stage is
// multiplied, the following ones are copied.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/copy_async.cuh"
#include "kernels/device/panel.cuh"
#include "kernels/device/tiles.h"

namespace ghostshard::kernels::device {

template <typename Element, int kDepth, int kStages, int kRows = kTile>
struct ProductRing {
  struct Stage {
    alignas(kWidest) Element x[kRows * kDepth];
    alignas(kWidest) Element y[kRows * kDepth];
  };
  Stage stage[kStages];

  // Calls multiply(x's panel, y's panel, k) for k = 0, kDepth, … below depth. Called by all threads of the block; the
  // ring may be used again at once.
  template <int kThreads, int kSwizzle, typename View, typename Multiply>
  __device__ void stream(const View& x, const View& y, int64_t depth, const Multiply& multiply) {
    using OfPanel = Panel<View, kDepth, kSwizzle, kRows>;
    // A tile on the diagonal of a Gram matrix: one panel serves as both operands.
    const bool same = x.first == y.first && x.stride == y.stride && x.extent == y.extent;
    const auto fill = [&](int to, int64_t k) {
      if (k < depth) {
        OfPanel::template fill<kThreads>(stage[to].x, x, k, depth);
        if (!same) OfPanel::template fill<kThreads>(stage[to].y, y, k, depth);
      }
      commit_copies();  // even an empty group, so that the last kStages - 2 groups are always the steps ahead
    };
    GHOSTSHARD_UNROLL(1)
    for (int ahead = 0; ahead < kStages - 1; ++ahead) fill(ahead, int64_t{ahead} * kDepth);
    int now = 0;
    for (int64_t k = 0; k < depth; k += kDepth) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // all threads see this stage, and all have read the one before it, which is filled next
      fill(now == 0 ? kStages - 1 : now - 1, k + int64_t{kStages - 1} * kDepth);
      multiply(stage[now].x, same ? stage[now].x : stage[now].y, k);
      now = now == kStages - 1 ? 0 : now + 1;
    }
    __syncthreads();
  }
};

}  // namespace ghostshard::kernels::device
