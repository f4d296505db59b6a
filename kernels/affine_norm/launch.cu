// Per-unit sums of rows: biases, scales and shifts. One block to a unit, one thread to every 256th column; summed in
// float64 and rounded once, as on the host.
#include <cstdint>
#include <type_traits>

#include "kernels/affine_norm/device.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/rounding.h"
#include "kernels/device/shared.cuh"

namespace ghostshard::kernels::device {
namespace {

constexpr int kThreads = 256;

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
  auto& scratch = block_shared<BlockSum<kThreads>>();
  for (int64_t unit = blockIdx.x; unit < p.units.count; unit += gridDim.x) {
    const int64_t begin = p.units.offsets[unit], end = p.units.offsets[unit + 1];
    double squares = 0;
    for (int64_t j = threadIdx.x; j < p.columns; j += kThreads) {
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

}  // namespace

void sum_rows_of_units(const RowSums& work, Stream stream) {
  visit_element(work.g.element, [&](auto zero) {
    using Type = decltype(zero);
    using Sum = std::conditional_t<std::is_same_v<Type, double>, double, float>;
    launch("sum_rows", sum_rows<Type, Sum>,
           {.work = work.units.count, .threads = kThreads, .shared_bytes = sizeof(BlockSum<kThreads>)}, stream,
           {.g = static_cast<const Type*>(work.g.data),
            .factors = static_cast<const Type*>(work.factors),
            .columns = work.g.columns,
            .units = work.units,
            .out = static_cast<Sum*>(work.out),
            .accumulate = work.accumulate,
            .parts = work.parts});
  });
}

}  // namespace ghostshard::kernels::device
