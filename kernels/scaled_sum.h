// The clipped sum: out += sum over units of c_u·G_u, in float32, in a fixed order.
//
// factors float32 [U]. A unit whose factor is exactly 0 contributes exactly zero: its values are not read (they may be
// infinite or NaN). Throws std::invalid_argument if shapes do not fit.
#pragma once

#include <ATen/ATen.h>

#include "kernels/segments.h"

namespace ghostshard::kernels {

// From held gradients [U, ...] to out [...], both float32 (float64 in tests).
void scaled_sum_held(const at::Tensor& held, const at::Tensor& factors, at::Tensor out);

// From rows: out [p,d] += (c·g)ᵀ a. On the CPU the narrower of a and g is scaled into a temporary, and the rows of
// units whose factor is 0 are left out. On a device each unit's product has an accumulator of its own, and only that is
// scaled.
void scaled_sum_rows(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const at::Tensor& factors,
                     at::Tensor out);

}  // namespace ghostshard::kernels
