#include "kernels/norm_parts.h"

#include <cmath>
#include <limits>

#include "kernels/checks.h"

namespace ghostshard::kernels {
namespace {

// A sum so long that nothing is known of it any more has no finite bound.
double gamma(int64_t terms, double unit_roundoff) {
  const double nu = static_cast<double>(terms) * unit_roundoff;
  return nu < 1 ? nu / (1 - nu) : std::numeric_limits<double>::infinity();
}

}  // namespace

double gamma_float32(int64_t terms) { return gamma(terms, 0x1p-24); }
double gamma_float64(int64_t terms) { return gamma(terms, 0x1p-53); }

NormParts NormParts::zeros(int64_t units) {
  const auto zero = [units] { return at::zeros({units}, at::kDouble); };
  return {.value = zero(), .value_error = zero(), .mass = zero(), .sum_error = zero()};
}

at::Tensor norm_upper_bound_sq(const NormParts& parts) {
  const int64_t units = parts.value.numel();
  require_parts(parts, units);
  at::Tensor bound = at::empty({units}, at::kDouble);
  const double* value = parts.value.const_data_ptr<double>();
  const double* value_error = parts.value_error.const_data_ptr<double>();
  const double* mass = parts.mass.const_data_ptr<double>();
  const double* sum_error = parts.sum_error.const_data_ptr<double>();
  double* out = bound.mutable_data_ptr<double>();
  // The seven roundings of the line below, each of at most 2^-53 and doubled by the square where they come before it.
  constexpr double kRoundUp = 1 + 0x1p-49;
  for (int64_t u = 0; u < units; ++u) {
    // std::max would let a NaN value through as 0.
    const double value_or_zero = value[u] < 0 ? 0.0 : value[u];
    const double norm = std::sqrt(value_or_zero + value_error[u]) + sum_error[u] * mass[u];
    const double squared = norm * norm * kRoundUp;
    const bool all_finite = std::isfinite(value[u]) && std::isfinite(value_error[u]) && std::isfinite(mass[u]) &&
                            std::isfinite(sum_error[u]) && std::isfinite(squared);
    out[u] = all_finite ? squared : std::numeric_limits<double>::infinity();
  }
  return bound;
}

}  // namespace ghostshard::kernels
