// One tile of a product X·Yᵀ by one block: entry (m,n) = sum over k of X(m,k)·Y(n,k). Gram matrices, gradients of one
// unit and clipped sums are all this product of two views of rows.
//
// Two ways behind one interface: plain arithmetic (float32 rows, and float64 for any rows), and tensor cores with
// float32 accumulators for 16-bit rows. Each keeps its entries in registers; which ones, row() and column() say.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device/elements.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/tiles.h"

namespace ghostshard::kernels::device {

// X(m,k): row m of a matrix, its columns summed over.
template <typename Element>
struct RowsView {
  static constexpr bool kDepthIsContiguous = true;
  const Element* first;
  int64_t stride;
  int64_t extent;  // rows that there are; entries beyond are zero
  __device__ Element at(int64_t m, int64_t k) const { return first[m * stride + k]; }
};

// X(m,k): column m, rows summed over.
template <typename Element>
struct ColumnsView {
  static constexpr bool kDepthIsContiguous = false;
  const Element* first;
  int64_t stride;
  int64_t extent;
  __device__ Element at(int64_t m, int64_t k) const { return first[k * stride + m]; }
};

template <typename SumType>
struct PlainTile {
  using Sum = SumType;
  static constexpr int kThreads = 256;
  static constexpr int kSide = 16;  // threads down and across; each has every 16th row and column
  static constexpr int kPerSide = kTile / kSide;
  static constexpr int kEntries = kPerSide * kPerSide;
  static constexpr int kDepth = 16;
  static_assert(kChunk % kDepth == 0);

  struct Storage {
    Sum x[kTile][kDepth + 1];  // one more, so that a column lies in as many banks as it has rows
    Sum y[kTile][kDepth + 1];
  };

  static __device__ int row(int entry) { return static_cast<int>(threadIdx.x) / kSide + kSide * (entry / kPerSide); }
  static __device__ int column(int entry) { return static_cast<int>(threadIdx.x) % kSide + kSide * (entry % kPerSide); }

  // By all threads of the block. The storage may be used again at once.
  template <typename X, typename Y>
  static __device__ void product(Storage& storage, const X& x, const Y& y, int64_t depth, Sum (&sums)[kEntries]) {
    for (Sum& sum : sums) sum = 0;
    for (int64_t chunk = 0; chunk < depth; chunk += kChunk) {
      const int64_t end = chunk + kChunk < depth ? chunk + kChunk : depth;
      Sum part[kEntries] = {};
      for (int64_t k = chunk; k < end; k += kDepth) {
        __syncthreads();  // what was there has been read
        load(storage.x, x, k, depth);
        load(storage.y, y, k, depth);
        __syncthreads();
        multiply_add(storage, part);
      }
      for (int entry = 0; entry < kEntries; ++entry) sums[entry] += part[entry];
    }
    __syncthreads();
  }

 private:
  template <typename View>
  static __device__ void load(Sum (&to)[kTile][kDepth + 1], const View& view, int64_t first, int64_t depth) {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
      const int m = View::kDepthIsContiguous ? i / kDepth : i % kTile;
      const int k = View::kDepthIsContiguous ? i % kDepth : i / kTile;
      const bool inside = m < view.extent && first + k < depth;
      to[m][k] = inside ? static_cast<Sum>(to_float(view.at(m, first + k))) : Sum{0};
    }
  }

  static __device__ void multiply_add(const Storage& storage, Sum (&part)[kEntries]) {
    for (int k = 0; k < kDepth; ++k) {
      Sum right[kPerSide];
      for (int j = 0; j < kPerSide; ++j) right[j] = storage.y[column(j)][k];
      for (int i = 0; i < kPerSide; ++i) {
        const Sum left = storage.x[row(i * kPerSide)][k];
        for (int j = 0; j < kPerSide; ++j) part[i * kPerSide + j] += left * right[j];
      }
    }
  }
};

template <typename Format>
struct TensorCoreTile {
  using Sum = float;
  static constexpr int kThreads = 4 * kWarp;  // two warps down and two across, 32 × 32 entries each
  static constexpr int kDown = 2;             // fragments of 16 rows
  static constexpr int kAcross = 4;           // fragments of 8 columns
  static constexpr int kEntries = kDown * kAcross * 4;
  static constexpr int kDepth = 32;
  static constexpr int kWords = kDepth / 2;
  static_assert(kChunk % kDepth == 0);

  // Pairs of elements. Four words more a row put the rows and pairs that a warp reads at a time into different banks.
  struct Storage {
    uint32_t x[kTile][kWords + 4];
    uint32_t y[kTile][kWords + 4];
  };

  static __device__ int row(int entry) {
    return 32 * (warp() / 2) + 16 * (entry / 4 / kAcross) + 8 * (entry % 4 / 2) + group();
  }
  static __device__ int column(int entry) {
    return 32 * (warp() % 2) + 8 * (entry / 4 % kAcross) + 2 * pair() + entry % 2;
  }

  template <typename X, typename Y>
  static __device__ void product(Storage& storage, const X& x, const Y& y, int64_t depth, Sum (&sums)[kEntries]) {
    for (Sum& sum : sums) sum = 0;
    for (int64_t chunk = 0; chunk < depth; chunk += kChunk) {
      const int64_t end = chunk + kChunk < depth ? chunk + kChunk : depth;
      float part[kDown][kAcross][4] = {};
      for (int64_t k = chunk; k < end; k += kDepth) {
        __syncthreads();  // what was there has been read
        load(storage.x, x, k, depth);
        load(storage.y, y, k, depth);
        __syncthreads();
        multiply_add(storage, 0, part);
        if (k + 16 < end) multiply_add(storage, 8, part);
      }
      for (int entry = 0; entry < kEntries; ++entry) {
        sums[entry] += part[entry / 4 / kAcross][entry / 4 % kAcross][entry % 4];
      }
    }
    __syncthreads();
  }

 private:
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  static __device__ int group() { return static_cast<int>(threadIdx.x) % kWarp / 4; }
  static __device__ int pair() { return static_cast<int>(threadIdx.x) % 4; }

  template <typename View>
  static __device__ uint32_t bits(const View& view, int64_t m, int64_t k, int64_t depth) {
    return m < view.extent && k < depth ? view.at(m, k).bits : 0u;
  }

  template <typename View>
  static __device__ void load(uint32_t (&to)[kTile][kWords + 4], const View& view, int64_t first, int64_t depth) {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kWords; i += kThreads) {
      const int m = View::kDepthIsContiguous ? i / kWords : i % kTile;
      const int word = View::kDepthIsContiguous ? i % kWords : i / kTile;
      const int64_t k = first + int64_t{2} * word;
      to[m][word] = bits(view, m, k, depth) | bits(view, m, k + 1, depth) << 16;
    }
  }

  // 16 of the depth, from this word on.
  static __device__ void multiply_add(const Storage& storage, int word, float (&part)[kDown][kAcross][4]) {
    uint32_t right[kAcross][2];
    for (int j = 0; j < kAcross; ++j) {
      const uint32_t* y = storage.y[32 * (warp() % 2) + 8 * j + group()] + word + pair();
      right[j][0] = y[0];
      right[j][1] = y[4];
    }
    for (int i = 0; i < kDown; ++i) {
      const int top = 32 * (warp() / 2) + 16 * i + group();
      const uint32_t* upper = storage.x[top] + word + pair();
      const uint32_t* lower = storage.x[top + 8] + word + pair();
      const uint32_t left[4] = {upper[0], lower[0], upper[4], lower[4]};
      for (int j = 0; j < kAcross; ++j) multiply_add_16x8x16(Format{}, part[i][j], left, right[j]);
    }
  }
};

// The way for rows of an element's type, summed in their own arithmetic (float32 for 16 bits).
template <typename Element>
using TileFor = std::conditional_t<std::is_floating_point_v<Element>,
                                   PlainTile<std::conditional_t<std::is_same_v<Element, double>, double, float>>,
                                   TensorCoreTile<Element>>;

}  // namespace ghostshard::kernels::device
