// Rows a [N,d] and g [N,p] of a layer's units, of a format that is known when the kernel is compiled.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/elements.cuh"
#include "kernels/device/panel.cuh"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

template <typename Element>
struct RowPair {
  const Element* a;
  const Element* g;
  int64_t inputs, outputs;  // d, p
  int64_t a_stride, g_stride;
  Units units;

  __device__ int64_t stride_of_a() const { return row_stride<Element>(inputs, a_stride); }
  __device__ int64_t stride_of_g() const { return row_stride<Element>(outputs, g_stride); }

  // The columns of a from `left` on, of g from `top` on, in the rows from `begin` on, which are summed over.
  __device__ ColumnsView<Element> columns_of_a(int64_t begin, int64_t left) const {
    return {a + begin * stride_of_a() + left, stride_of_a(), inputs - left};
  }
  __device__ ColumnsView<Element> columns_of_g(int64_t begin, int64_t top) const {
    return {g + begin * stride_of_g() + top, stride_of_g(), outputs - top};
  }
};

template <typename Element>
RowPair<Element> row_pair(const Matrix& a, const Matrix& g, const Units& units) {
  return {.a = static_cast<const Element*>(a.data),
          .g = static_cast<const Element*>(g.data),
          .inputs = a.columns,
          .outputs = g.columns,
          .a_stride = a.stride,
          .g_stride = g.stride,
          .units = units};
}

}  // namespace ghostshard::kernels::device
