// The nearest matrix with orthogonal rows or columns, roughly: U·Vᵀ of the singular value decomposition U·S·Vᵀ, with
// singular values between 0.82 and 1.18 in place of 1; times `scale`.
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::fsdp {

// Of X, a matrix [p, d] or [n, p, d] (n matrices, each by itself) of m = min(p, d) rows, transposed if need be, with R
// = X·Xᵀ and t the norm of R, that is X's fourth-power norm (Σs_i⁴)^(1/4), squared:
//
//   M·X,  M = h/√t·(I + Σ_j a_j·t·(R + c_j·t·I)^(-1)),  j = 1, 2
//
// M·X has X's singular vectors, and in the place of a singular value s, with x = s/√t,
//
//   z(x) = h·x·(1 + Σ_j a_j/(x² + c_j)).
//
// That is Zolotarev's: among the odd rational functions of degree (5, 4) the one that is nearest to 1 on [l, 1]. Its
// numbers follow from elliptic functions, and its error's alternation proves it (tests/fsdp/muon_test.cpp); for polar
// decompositions: Nakatsukasa and Freund, SIAM Review 58 (2016).
// With l = 0.0014 it stays within 0.82138 and 1.17863 there, and rises to the first from 0 below. No x is above 1,
// as (Σs_i⁴)^(1/4) ≥ s_1. Muon's own five Newton-Schulz iterations (Jordan et al. 2024) keep 0.63 to 1.21 from 0.0014
// on, beside the Frobenius norm (Σs_i²)^(1/2), which is the larger one, by m^(1/4) where all s_i are about equal.
//
// Two inverses of m × m matrices take 2.7·m³ operations (by halves: Cholesky's way takes 2·m³, at half the speed or
// less), R takes m·p·d (the lower triangle alone is computed) and M·X 2·m·p·d; five iterations take 5·(4·m·p·d + 2·m³).
//
// Errors of R count (s_1/s)² times for a singular value s. So it is float64 unless the longer side is twice the shorter
// one at least, where noise alone has (s_1/s)² < 34 (Marchenko and Pastur); a float32 R that its errors keep from being
// positive definite is computed again in float64. R + c_2·t·I is inverted in float32 in any case: its errors, 2^-24 of
// R's norm, which is t at the most, are 2^-24/c_2 = 9e-6 of it at the most, and those of noise, whose R has the norm
// t·√(8/m), a small part of that. float32 or float64; a matrix of zeros stays one, NaN or infinity anywhere is NaN
// everywhere. No sum's order follows the number of threads, but products are the library's.
at::Tensor orthogonalised(const at::Tensor& matrix, double scale = 1);

}  // namespace ghostshard::fsdp
