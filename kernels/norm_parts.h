// One parameter's per-unit gradient norms, and the bounds of their errors, while they are being gathered.
//
// A norm must never come out too small. Two things can make it so: the float32 sum that forms the norm, and the
// float32 sum that later forms the unit's contribution (its computed value can be larger than the exact one when
// tokens cancel). Both errors are bounded by the *mass* of the unit, sum over its rows of |a_t|·|g_t|: any order of
// a float32 sum of n products errs by at most gamma(n) times the sum of the absolute products (Higham, Accuracy and
// Stability of Numerical Algorithms, 2nd ed., section 3.1 and 4.2).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::kernels {

// n·u / (1 − n·u) with u = 2^-24: the relative error of a float32 sum of n products, whatever its order.
double gamma_float32(int64_t terms);
// The same with u = 2^-53.
double gamma_float64(int64_t terms);

struct NormParts {
  at::Tensor value;        // float64 [U], on the rows' device: ‖G_u‖² as computed.
  at::Tensor value_error;  // float64 [U]: bound on |value − exact ‖G_u‖²|.
  at::Tensor mass;         // float64 [U]: sum of |a_t|·|g_t| over the rows whose sum is formed later; 0 if G is held.
  at::Tensor sum_error;  // float64 [U]: gamma of that later sum: ‖computed G_u‖ ≤ ‖exact G_u‖ + sum_error·mass.

  static NormParts zeros(int64_t units, at::Device device = at::kCPU);
  // Those of one parameter, if these are of several, `units` of each, one after the other. Views.
  NormParts of(int64_t parameter, int64_t units) const;
};

// Upper bound of ‖computed G_u‖²: (sqrt(max(value,0) + value_error) + sum_error·mass)², float64 [U] on the parts'
// device. Anything non-finite in a unit's parts gives +infinity for that unit, never NaN. So does a mass from 2^126 on:
// the float32 sum of such rows might overflow on its way.
at::Tensor norm_upper_bound_sq(const NormParts& parts);
// The sum of these bounds over the parameters, in their order, float64 [units]. parts: of several parameters, `units`
// of each, one after the other. (A parameter that was not used has zeros, and adds nothing.)
at::Tensor sum_of_norm_bounds(const NormParts& parts, int64_t units);

}  // namespace ghostshard::kernels
