// Per-unit sums of rows: biases, scales and shifts. A block sums a strip of one unit's columns; each column's rows are
// shared out among some threads. Sums are formed in float64 and rounded once, as on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/affine_norm/device.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/shared.cuh"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// A warp reads neighbouring columns of one row. A layer of GPT-2 has 24 to 96 strips, so that a few units fill a
// device.
constexpr int kStripRows = 8;  // that are read at a time
constexpr int kRowSumThreads = kStripColumns * kStripRows;

struct RowSumShared {
  double part[kStripRows][kStripColumns];
  BlockSum<kRowSumThreads> squares;
};

template <typename Element, typename Sum>
struct RowSumsOf {
  const Element* g;
  const Element* factors;
  int64_t columns, strips;
  Units units;
  Sum* out;
  bool accumulate;
  double* partials;  // [U,strips]
};

template <typename Element, typename Sum>
__global__ void __launch_bounds__(kRowSumThreads) sum_rows(RowSumsOf<Element, Sum> p) {
  auto& shared = block_shared<RowSumShared>();
  const int within = static_cast<int>(threadIdx.x) % kStripColumns,
            from = static_cast<int>(threadIdx.x) / kStripColumns;
  for (int64_t strip = blockIdx.x; strip < p.units.count * p.strips; strip += gridDim.x) {
    const int64_t unit = strip / p.strips, column = strip % p.strips * kStripColumns + within;
    const int64_t end = p.units.offsets[unit + 1];
    double sum = 0;
    if (column < p.columns) {
      GHOSTSHARD_UNROLL(4)  // so many loads are on their way at a time
      for (int64_t t = p.units.offsets[unit] + from; t < end; t += kStripRows) {
        const double g = to_float(p.g[t * p.columns + column]);
        sum += p.factors == nullptr ? g : g * to_float(p.factors[t * p.columns + column]);
      }
    }
    shared.part[from][within] = sum;
    __syncthreads();
    double square = 0;
    if (from == 0 && column < p.columns) {
      for (int row = 1; row < kStripRows; ++row) sum += shared.part[row][within];
      Sum& to = p.out[unit * p.columns + column];
      to = static_cast<Sum>(sum + (p.accumulate ? static_cast<double>(to) : 0.0));
      square = static_cast<double>(to) * static_cast<double>(to);
    }
    const double squares = block_sum(shared.squares, square);  // whose barriers let the parts be written again
    if (threadIdx.x == 0) {
      p.partials[strip] = squares;
    }
  }
}

struct RowSumFinish {
  Units units;
  int64_t columns, strips;
  const double* partials;
  Parts parts;
};

// One warp for each unit.
inline __global__ void finish_row_sums(RowSumFinish p) {
  for (int64_t unit = blockIdx.x; unit < p.units.count; unit += gridDim.x) {
    double squares = 0;
    for (int64_t strip = threadIdx.x; strip < p.strips; strip += kWarp) squares += p.partials[unit * p.strips + strip];
    squares = warp_sum(squares);
    if (threadIdx.x == 0) {
      p.parts.value[unit] = squares;
      p.parts.value_error[unit] = gamma_of(p.columns + 16, 0x1p-53) * squares;
    }
  }
}

}  // namespace ghostshard::kernels::device
