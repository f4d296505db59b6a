#include "kernels/norm_parts.h"

#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/device/rounding.h"
#include "kernels/host/checks.h"
#include "kernels/norm_parts/bound.h"

namespace ghostshard::kernels {

double gamma_float32(int64_t terms) { return device::gamma_of(terms, 0x1p-24); }
double gamma_float64(int64_t terms) { return device::gamma_of(terms, 0x1p-53); }

NormParts NormParts::zeros(int64_t units, at::Device device) {
  const auto zero = [&] { return at::zeros({units}, at::TensorOptions(at::kDouble).device(device)); };
  return {.value = zero(), .value_error = zero(), .mass = zero(), .sum_error = zero()};
}

at::Tensor norm_upper_bound_sq(const NormParts& parts) {
  if (device::runs_on_device(parts.value)) {
    return on_device::norm_upper_bound_sq(parts);
  }
  const int64_t units = parts.value.numel();
  require_parts(parts, units);
  at::Tensor bound = at::empty({units}, at::kDouble);
  const double* value = parts.value.const_data_ptr<double>();
  const double* value_error = parts.value_error.const_data_ptr<double>();
  const double* mass = parts.mass.const_data_ptr<double>();
  const double* sum_error = parts.sum_error.const_data_ptr<double>();
  double* out = bound.mutable_data_ptr<double>();
  for (int64_t u = 0; u < units; ++u) out[u] = norm_bound_sq(value[u], value_error[u], mass[u], sum_error[u]);
  return bound;
}

}  // namespace ghostshard::kernels
