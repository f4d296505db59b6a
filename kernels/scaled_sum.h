// The clipped sum: out += sum over units of c_u·G_u, in float32, in a fixed order.
//
// factors float32 [U]. A unit whose factor is exactly 0 contributes exactly zero: its values are not read (they may
// be infinite or NaN). Throws std::invalid_argument on shapes that do not fit.
#pragma once

#include <ATen/ATen.h>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// From held gradients [U, ...] into out [...] float32.
void scaled_sum_held(const at::Tensor& held, const at::Tensor& factors, at::Tensor out);

// From rows: out [p,d] += (c·g)ᵀ a. Scales the narrower of a and g into a temporary (the narrower is copied anyway),
// masks the other only where a factor is 0.
void scaled_sum_rows(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const at::Tensor& factors,
                     at::Tensor out);

// A table used as embedding and as head has one buffer for both clipped sums. Raises parts.sum_error of each unit to
// that of scaled_sum_rows of head rows of this type and embedding_scaled_sum together (kernels/norm_parts.h).
void raise_tied_sum_error(at::ScalarType rows, const Segments& tokens, const Segments& lookups, NormParts& parts);

}  // namespace ghostshard::kernels
