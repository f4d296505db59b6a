// Euclidean norms of rows.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/device/elements.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

constexpr int kRowNormThreads = 256;

// norms[t] = |x_t|, rounded up; one warp for each row.
template <typename Element>
__global__ void row_norms(const Element* x, int64_t rows, int64_t columns, int64_t stride, double* norms) {
  constexpr int kRows = kRowNormThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const double round_up = 1 + gamma_of(columns + 4, 0x1p-53);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < rows;
       first += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t row = first + static_cast<int>(threadIdx.x) / kWarp;
    double squares = 0;
    if (row < rows) {
      for (int64_t j = lane; j < columns; j += kWarp) {
        const double value = to_float(x[row * stride + j]);
        squares += value * value;
      }
    }
    squares = warp_sum(squares);
    if (row < rows && lane == 0) {
      norms[row] = sqrt(squares) * round_up;
    }
  }
}

template <typename Element>
void launch_row_norms(const Matrix& x, double* norms, Stream stream) {
  launch("row_norms", row_norms<Element>,
         {.work = blocks_of(x.rows, kRowNormThreads / kWarp), .threads = kRowNormThreads}, stream,
         static_cast<const Element*>(x.data), x.rows, x.columns, x.stride, norms);
}

}  // namespace ghostshard::kernels::device
