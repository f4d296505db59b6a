// Per-unit gradients of vectors: biases and the scale and shift of a normalisation. Small, so always held.
//
// x_hat, g [N,d] float32 (float64 in tests), segments over the rows, out [U,d].
#pragma once

#include <ATen/ATen.h>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// out[u] = sum over rows of g_t (a bias, a shift); sets parts.value to ‖out[u]‖² of exactly these values.
void per_unit_row_sum(const at::Tensor& g, const Segments& segments, at::Tensor out, bool accumulate, NormParts& parts);

// out[u] = sum over rows of g_t ∘ x_hat_t (a scale); likewise.
void per_unit_product_sum(const at::Tensor& g, const at::Tensor& x_hat, const Segments& segments, at::Tensor out,
                          bool accumulate, NormParts& parts);

}  // namespace ghostshard::kernels
