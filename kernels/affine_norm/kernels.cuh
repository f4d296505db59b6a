// Per-unit sums of rows: biases, scales and shifts. One block sums one unit, one thread every 256th column; sums are
// formed in float64 and rounded once, as on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/elements.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/shared.cuh"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

constexpr int kRowSumThreads = 256;

template <typename Element, typename Sum>
struct RowSumsOf {
  const Element* g;
  const Element* factors;
  int64_t columns;
  Units units;
  Sum* out;
  bool accumulate;
  Parts parts;
};

template <typename Element, typename Sum>
__global__ void sum_rows(RowSumsOf<Element, Sum> p) {
  auto& scratch = block_shared<BlockSum<kRowSumThreads>>();
  for (int64_t unit = blockIdx.x; unit < p.units.count; unit += gridDim.x) {
    const int64_t begin = p.units.offsets[unit], end = p.units.offsets[unit + 1];
    double squares = 0;
    for (int64_t j = threadIdx.x; j < p.columns; j += kRowSumThreads) {
      double sum = 0;
      for (int64_t t = begin; t < end; ++t) {
        const double g = to_float(p.g[t * p.columns + j]);
        sum += p.factors == nullptr ? g : g * to_float(p.factors[t * p.columns + j]);
      }
      Sum& to = p.out[unit * p.columns + j];
      to = static_cast<Sum>(sum + (p.accumulate ? static_cast<double>(to) : 0.0));
      squares += static_cast<double>(to) * static_cast<double>(to);
    }
    squares = block_sum(scratch, squares);
    if (threadIdx.x == 0) {
      p.parts.value[unit] = squares;
      p.parts.value_error[unit] = gamma_of(p.columns + 8, 0x1p-53) * squares;
    }
  }
}

}  // namespace ghostshard::kernels::device
