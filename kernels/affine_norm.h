// Per-unit gradients of vectors: biases, and the scale and shift of a normalisation. They are small, so they are always
// held.
//
// x_hat and g [N,d] are float32 (float64 in tests; on a device bfloat16 and float16 too), `segments` divides their
// rows, out [U,d] is float32 (float64 for float64 rows). Throws std::invalid_argument (rule and shapes) if shapes do
// not fit.
#pragma once

#include <ATen/ATen.h>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// out[u] = sum over u's rows of g_t (a bias, a shift), added to the values in out if `accumulate`. Sets parts.value to
// ‖out[u]‖² of exactly the values now in out, and value_error to the error of that sum of squares.
void per_unit_row_sum(const at::Tensor& g, const Segments& segments, at::Tensor out, bool accumulate, NormParts& parts);

// The same for g_t ∘ x_hat_t instead of g_t (a scale).
void per_unit_product_sum(const at::Tensor& g, const at::Tensor& x_hat, const Segments& segments, at::Tensor out,
                          bool accumulate, NormParts& parts);

}  // namespace ghostshard::kernels
