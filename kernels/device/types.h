// What crosses the line between the operations (LibTorch, no CUDA) and the device code (CUDA, no LibTorch): pointers,
// extents and a stream. All pointers are to device memory; nobody owns anything here.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace ghostshard::kernels::device {

// What CUDA's headers call cudaStream_t.
using Stream = CUstream_st*;

enum class ElementType { kFloat32, kFloat64, kBFloat16, kFloat16 };

// Rows of contiguous elements, this far apart: by the columns, but for 16-bit elements, whose rows may be longer than
// what there is of them.
struct Matrix {
  const void* data;
  int64_t rows;
  int64_t columns;
  int64_t stride;
  ElementType element;
};

// Rows offsets[u] up to offsets[u+1] (exclusive) are unit u's; offsets [count+1].
struct Units {
  const int64_t* offsets;
  int64_t count;
};

// The tiles that a kernel works on, unit after unit: first[u] up to first[u+1] are unit u's; first [count+1].
struct UnitTiles {
  const int64_t* first;
  int64_t count;
};

// float64 [U] each, as in kernels/norm_parts.h.
struct Parts {
  double* value;
  double* value_error;
  double* mass;
  double* sum_error;
};

}  // namespace ghostshard::kernels::device
