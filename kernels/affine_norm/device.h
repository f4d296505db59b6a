// The device's half of affine_norm.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// Columns that a block sums.
constexpr int kStripColumns = 32;
constexpr int64_t strips_of(int64_t columns) { return (columns + kStripColumns - 1) / kStripColumns; }

struct RowSums {
  Matrix g;
  const void* factors;  // of g's shape and type, multiplied in element by element; null: none
  Units units;
  void* out;  // [U,d] float32, or float64 for float64 rows
  bool accumulate;
  double* partials;  // [U,strips]
  Parts parts;
};

// out[u] (+)= the sum of unit u's rows. Sets parts.value and value_error to those of the values then in out.
void sum_rows_of_units(const RowSums& work, Stream stream);

}  // namespace ghostshard::kernels::device
