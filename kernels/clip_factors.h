// Factors that bring each unit's gradient to a norm of at most `limit`.
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::kernels {

// From float64 upper bounds of squared norms [U], float32 factors [U] on the same device: min(1, limit/sqrt(bound)),
// rounded towards zero and shrunk by 2^-22, the same bits on every device; 0 if the bound is not finite. Throws
// std::invalid_argument unless the bounds are a contiguous float64 vector and limit is finite and positive.
at::Tensor clip_factors(const at::Tensor& squared_norms, double limit);

}  // namespace ghostshard::kernels
