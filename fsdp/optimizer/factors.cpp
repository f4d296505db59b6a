#include "fsdp/optimizer/factors.h"

#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>

#include <cmath>

namespace ghostshard::fsdp {

double steps_that_count(double beta, int64_t steps) {
  const double left = std::pow(beta, static_cast<double>(steps));
  return (1 - left) * (1 + beta) / ((1 - beta) * (1 + left));
}

ErrorSpectrum error_spectrum(double variance, int64_t side, int64_t other, double steps) {
  const double mean = variance * static_cast<double>(other);
  const double spread = std::sqrt(static_cast<double>(side) / (static_cast<double>(other) * steps));
  return {.mean = mean,
          .lower = spread < 1 ? mean * (1 - spread) * (1 - spread) : 0,
          .upper = mean * (1 + spread) * (1 + spread)};
}

at::Tensor without(const at::Tensor& factor, double known) {
  at::Tensor rest = factor.clone();
  rest.diagonal(0, -2, -1).sub_(known);
  return rest;
}

at::Tensor inverse_fourth_root(const at::Tensor& factor, double least) {
  constexpr double kLeast = 1e-6;     // of the largest
  constexpr double kNothing = 1e-30;  // of a matrix that is zero for all purposes
  const auto [values, vectors] = at::linalg_eigh(factor);
  const at::Tensor floor = values.amax(-1, /*keepdim=*/true).mul_(kLeast).clamp_min_(std::max(least, kNothing));
  const at::Tensor roots = at::maximum(values, floor).pow_(-0.25);
  return vectors.mul(roots.unsqueeze(-2)).matmul(vectors.transpose(-2, -1));
}

at::Tensor eigenbasis(const at::Tensor& factor) {
  return std::get<1>(at::linalg_eigh(factor)).flip(-1);  // LAPACK's are in rising order
}

at::Tensor next_eigenbasis(const at::Tensor& factor, const at::Tensor& basis) {
  return std::get<0>(at::linalg_qr(factor.matmul(basis)));
}

}  // namespace ghostshard::fsdp
