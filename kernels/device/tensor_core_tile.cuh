// A tile of a product of 16-bit rows by tensor cores, with float32 accumulators.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/load_matrices.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/product_ring.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/tiles.h"

namespace ghostshard::kernels::device {

template <typename Format, int kStepDepth = 64, int kStages = 3>
struct TensorCoreTile {
  using Sum = float;
  static constexpr int kSide = kTensorCoreTile;
  static constexpr int kWarpsAcross = 4;
  static constexpr int kThreads = 2 * kWarpsAcross * kWarp;  // two warps down; 64 × 32 entries each
  static constexpr int kDown = 4;                            // fragments of 16 rows
  static constexpr int kAcross = 4;                          // fragments of 8 columns
  static constexpr int kEntries = kDown * kAcross * 4;
  static constexpr int kBlocks = 1;  // for which registers must leave room on a multiprocessor
  static_assert(2 * 16 * kDown == kSide && kWarpsAcross * 8 * kAcross == kSide);
  static constexpr int kDepth = kStepDepth;
  static constexpr int kFragmentDepth = 16;
  static_assert(kChunk % kDepth == 0);

  // A warp's 64 × 32 entries do 21 operations for each byte read from shared memory, and the tile 64 for each byte from
  // beyond it. Three stages of 64 steps of the depth, 96 KiB, copy two steps ahead.
  using Storage = ProductRing<Format, kDepth, kStages, kSide>;

  static __device__ int row(int entry) {
    return 16 * kDown * (warp() / kWarpsAcross) + 16 * (entry / 4 / kAcross) + 8 * (entry % 4 / 2) + lane() / 4;
  }
  static __device__ int column(int entry) {
    return 8 * kAcross * (warp() % kWarpsAcross) + 8 * (entry / 4 % kAcross) + 2 * (lane() % 4) + entry % 2;
  }

  // Called by all threads of the block. The storage may be used again at once.
  template <typename View>
  static __device__ void product(Storage& storage, const View& x, const View& y, int64_t depth, Sum (&sums)[kEntries]) {
    // Eight lines are read at a time: each fills the banks, or two lines of 64 bytes do.
    constexpr int kSwizzle = View::kDepthIsContiguous && kDepth == 32 ? 2 : 1;
    float part[kDown][kAcross][4] = {};
    for (Sum& sum : sums) sum = 0;
    const auto multiply = [&](const Format* left, const Format* right, int64_t k) {
      using OfPanel = Panel<View, kDepth, kSwizzle, kSide>;
      // Beyond the depth there are zeros: to skip them would cost more, as sums change registers where ways part.
      GHOSTSHARD_UNROLL(4)
      for (int within = 0; within < kDepth; within += kFragmentDepth) multiply_add<OfPanel>(left, right, within, part);
      if ((k + kDepth) % kChunk == 0 || k + kDepth >= depth) {
        GHOSTSHARD_UNROLL(64)
        for (int entry = 0; entry < kEntries; ++entry) {
          float& of_chunk = part[entry / 4 / kAcross][entry / 4 % kAcross][entry % 4];
          sums[entry] += of_chunk;
          of_chunk = 0;
        }
      }
    };
    storage.template stream<kThreads, kSwizzle>(x, y, depth, multiply);
  }

 private:
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  // Multiplies 16 steps of the depth, from `depth` on.
  template <typename OfPanel>
  static __device__ void multiply_add(const Format* x, const Format* y, int depth, float (&part)[kDown][kAcross][4]) {
    uint32_t right[kAcross / 2][4];
    for (int j = 0; j < kAcross / 2; ++j)
      load<OfPanel, kColumns>(right[j], y, 8 * kAcross * (warp() % kWarpsAcross) + 16 * j, depth);
    for (int i = 0; i < kDown; ++i) {
      uint32_t left[4];
      load<OfPanel, kRows>(left, x, 16 * kDown * (warp() / kWarpsAcross) + 16 * i, depth);
      for (int j = 0; j < kAcross; ++j) {
        const uint32_t(&pair)[4] = right[j / 2];
        const int first = j % 2 == 0 ? 0 : 2;
        const uint32_t fragment[2] = {pair[first], pair[first + 1]};
        multiply_add_16x8x16(Format{}, part[i][j], left, fragment);
      }
    }
  }

  // Loads 16 rows from `top` on, 16 steps of the depth, in four matrices of 8 by 8. kRows, for x: the upper and the
  // lower 8 rows, then the same 8 steps deeper, which is the fragment that mma takes. kColumns, for y, whose columns
  // are these rows: the upper 8 rows and the same 8 steps deeper, then the lower ones, which are two fragments. A
  // fragment whose registers are not neighbours is copied to ones that are, before each mma.
  enum Order { kRows, kColumns };
  template <typename OfPanel, Order kOrder>
  static __device__ void load(uint32_t (&out)[4], const Format* panel, int top, int depth) {
    const int second = 8 * (lane() / 8 % 2), later = 8 * (lane() / 16), of_matrix = lane() % 8;
    const int lower = kOrder == kRows ? second : later, deeper = kOrder == kRows ? later : second;
    if constexpr (OfPanel::kDepthIsContiguous) {
      load_matrices(out, panel + OfPanel::at(top + lower + of_matrix, depth + deeper));
    } else {
      load_matrices_transposed(out, panel + OfPanel::at(depth + deeper + of_matrix, top + lower));
    }
  }
};

}  // namespace ghostshard::kernels::device
