// The types that pass between the operations (LibTorch, no CUDA) and the device code (CUDA, no LibTorch): pointers,
// extents and a stream. All pointers are to device memory, and none of them owns it.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace ghostshard::kernels::device {

// CUDA's headers call this type cudaStream_t.
using Stream = CUstream_st*;

enum class ElementType { kFloat32, kFloat64, kBFloat16, kFloat16 };

// Rows of contiguous elements, `stride` elements apart. The stride is the number of columns; for 16-bit elements it may
// be larger.
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

// The tiles that a kernel works on, unit after unit: tiles first[u] up to first[u+1] (exclusive) are unit u's; first
// has one entry more than there are units, and count is the number of tiles.
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
