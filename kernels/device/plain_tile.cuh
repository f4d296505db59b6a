// A tile of a product by plain arithmetic: for float32 rows, and for float64 sums of any rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/elements.cuh"
#include "kernels/device/product_ring.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/tiles.h"
#include "kernels/device/vector.h"

namespace ghostshard::kernels::device {

template <typename Element, typename SumType>
struct PlainTile {
  using Sum = SumType;
  static constexpr int kSide = kTile;
  // Entries of a thread. 4 × 8 entries do 1.3 operations for each byte read from shared memory (4 × 4: 1; 8 × 8: 2, but
  // a Gram kernel's three sets of 64 sums would not fit into registers, nor would 4 × 8 in float64). Lanes share rows
  // and columns: for 128 multiply-adds, 32 cycles, a warp reads 1280 different bytes, 10 cycles.
  static constexpr int kDown = 4;
  static constexpr int kAcross = sizeof(Sum) == 4 ? 8 : 4;
  static constexpr int kEntries = kDown * kAcross;
  static constexpr int kThreadsAcross = kTile / kAcross;
  static constexpr int kThreadsDown = kTile / kDown;
  static constexpr int kThreads = kThreadsAcross * kThreadsDown;
  static constexpr int kVector = kWidest / static_cast<int>(sizeof(Sum));  // rows, columns or depth read at a time
  static constexpr int kBlocks = sizeof(Sum) == 4 ? 3 : 2;  // for which registers must leave room on a multiprocessor
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(Element));
  static_assert(kChunk % kDepth == 0 && kDown % kVector == 0 && kAcross % kVector == 0);

  using Storage = ProductRing<Element, kDepth, 2>;

  // Neighbouring threads have neighbouring vectors of rows and columns; one thread's vectors are far apart.
  static __device__ int row(int entry) {
    return place(static_cast<int>(threadIdx.x) / kThreadsAcross, kThreadsDown, entry / kAcross);
  }
  static __device__ int column(int entry) {
    return place(static_cast<int>(threadIdx.x) % kThreadsAcross, kThreadsAcross, entry % kAcross);
  }

  // Called by all threads of the block. The storage may be used again at once.
  template <typename View>
  static __device__ void product(Storage& storage, const View& x, const View& y, int64_t depth, Sum (&sums)[kEntries]) {
    Sum part[kEntries] = {};
    for (Sum& sum : sums) sum = 0;
    storage.template stream<kThreads, kVector>(x, y, depth, [&](const Element* left, const Element* right, int64_t k) {
      const int filled = depth - k < kDepth ? static_cast<int>(depth - k) : kDepth;
      multiply_add<View>(left, right, filled, part);
      if ((k + kDepth) % kChunk == 0 || k + kDepth >= depth) {
        GHOSTSHARD_UNROLL(64)
        for (int entry = 0; entry < kEntries; ++entry) {
          sums[entry] += part[entry];
          part[entry] = 0;
        }
      }
    });
  }

 private:
  static __device__ int place(int thread, int threads, int i) {
    return kVector * thread + i % kVector + i / kVector * kVector * threads;
  }

  template <typename View>
  static __device__ void multiply_add(const Element* x, const Element* y, int filled, Sum (&part)[kEntries]) {
    using OfPanel = Panel<View, kDepth, kVector>;
    if constexpr (View::kDepthIsContiguous) {
      for (int k = 0; k < filled; k += kVector) {
        Vector<Element, kVector> right[kAcross];
        for (int j = 0; j < kAcross; ++j) right[j] = vector_at<kVector>(y + OfPanel::at(column(j), k));
        for (int i = 0; i < kDown; ++i) {
          const Vector<Element, kVector> left = vector_at<kVector>(x + OfPanel::at(row(i * kAcross), k));
          for (int step = 0; step < kVector; ++step) {
            for (int j = 0; j < kAcross; ++j) {
              part[i * kAcross + j] += wide(left.value[step]) * wide(right[j].value[step]);
            }
          }
        }
      }
    } else {
      for (int k = 0; k < filled; ++k) {
        Sum left[kDown], right[kAcross];
        for (int i = 0; i < kDown; i += kVector) widen(x + OfPanel::at(k, row(i * kAcross)), left + i);
        for (int j = 0; j < kAcross; j += kVector) widen(y + OfPanel::at(k, column(j)), right + j);
        for (int i = 0; i < kDown; ++i) {
          for (int j = 0; j < kAcross; ++j) part[i * kAcross + j] += left[i] * right[j];
        }
      }
    }
  }

  static __device__ void widen(const Element* from, Sum* to) {
    const Vector<Element, kVector> vector = vector_at<kVector>(from);
    for (int i = 0; i < kVector; ++i) to[i] = wide(vector.value[i]);
  }

  static __device__ Sum wide(Element x) { return static_cast<Sum>(to_float(x)); }
};

}  // namespace ghostshard::kernels::device
