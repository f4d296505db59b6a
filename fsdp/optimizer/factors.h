// The factors of a tile's gradient, averages of G·Gᵀ or Gᵀ·G, and what is taken from them. Stacks [n, s, s] of
// symmetric matrices, float32 or float64, on any device; nothing is changed in place.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::fsdp {

// How many steps of equal weight an exponential average over `steps` steps, corrected for its start, is worth:
// (Σw)²/Σw².
double steps_that_count(double beta, int64_t steps);

// The spectrum of G·Gᵀ, averaged over `steps` steps, if G [side, other] consists of independent errors of a variance
// (Marchenko and Pastur 1967).
struct ErrorSpectrum {
  double mean = 0, lower = 0, upper = 0;
};
ErrorSpectrum error_spectrum(double variance, int64_t side, int64_t other, double steps);

// factor − known·I
at::Tensor without(const at::Tensor& factor, double known);

// factor^(-1/4), with eigenvalues raised to `least`, or to 1e-6 of the matrix's largest if that is more: float32 knows
// nothing of smaller ones.
at::Tensor inverse_fourth_root(const at::Tensor& factor, double least);

// Eigenvectors in columns, those of the largest eigenvalues first.
at::Tensor eigenbasis(const at::Tensor& factor);
// One round of orthogonal iteration from `basis`. Signs of columns are arbitrary.
at::Tensor next_eigenbasis(const at::Tensor& factor, const at::Tensor& basis);

}  // namespace ghostshard::fsdp
