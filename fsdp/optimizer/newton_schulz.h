// The nearest matrix with orthogonal rows or columns, roughly: U·Vᵀ of the singular value decomposition U·S·Vᵀ, with
// singular values between 0.7 and 1.2 in place of 1.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::fsdp {

// A quintic Newton-Schulz iteration on matrix / ‖matrix‖ (Jordan et al., Muon, 2024; the odd polynomial a·x + b·x³ +
// c·x⁵ with a = 3.4445, b = −4.7750, c = 2.0315 lifts small singular values as fast as it stays bounded). matrix [p, d]
// or [n, p, d] (n matrices, each by itself), float32 or float64; a matrix of zeros stays one. About
// iterations·2·(2·min(p,d)²·max(p,d) + min(p,d)³) operations.
at::Tensor orthogonalised(const at::Tensor& matrix, int64_t iterations);

}  // namespace ghostshard::fsdp
