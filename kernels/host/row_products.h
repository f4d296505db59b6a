// Inner products of rows, the arithmetic of a Gram norm.
//
// A library's matrix product would form both triangles of a symmetric matrix and sum each entry in one long chain.
// Here each entry is summed in kLanes independent chains that are then added pairwise: the error bound is that of
// columns/kLanes terms instead of columns, so fewer units need float64, and tiles right of the diagonal are skipped.
#pragma once

#include <cstdint>

namespace ghostshard::kernels {

// Roundings on the way of any one product to its entry, for rows of this many columns: |computed − exact| ≤
// gamma_float32(row_product_terms(columns))·|x_s|·|y_t|, underflow apart. Depends on the processor.
int64_t row_product_terms(int64_t columns);

// out[s·out_stride + t] = x_s·y_t for s < x_rows, t < y_rows, if t ≤ s + diagonal; entries right of that may be written
// or left as they are. Each row of x and y has `columns` contiguous values; rows are `stride` values apart.
void row_products(const float* x, int64_t x_rows, const float* y, int64_t y_rows, int64_t columns, int64_t stride,
                  int64_t diagonal, float* out, int64_t out_stride);

// The rows' products with each other, out[s·rows + t] for t ≤ s, bit for bit as row_products forms them, and their
// squares summed in float64: |squares[s] − |x_s|²| ≤ gamma_float64(square_terms(columns))·|x_s|². From one read: both
// take a chunk of columns while it is in the cache. adds: to what stands in out and squares, of columns before these.
void row_products_and_squares(const float* x, int64_t rows, int64_t columns, int64_t stride, float* out,
                              double* squares, bool adds = false);
int64_t square_terms(int64_t columns);
// How often such a call rounds what stands in out and squares already.
int64_t chunks_of(int64_t columns);

}  // namespace ghostshard::kernels
