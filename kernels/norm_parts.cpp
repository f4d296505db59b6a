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
  const at::Tensor all = at::zeros({4, units}, at::TensorOptions(at::kDouble).device(device));  // one fill
  return {.value = all[0], .value_error = all[1], .mass = all[2], .sum_error = all[3]};
}

NormParts NormParts::of(int64_t parameter, int64_t units) const {
  const auto its = [&](const at::Tensor& part) { return part.narrow(0, parameter * units, units); };
  return {.value = its(value), .value_error = its(value_error), .mass = its(mass), .sum_error = its(sum_error)};
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

at::Tensor sum_of_norm_bounds(const NormParts& parts, int64_t units) {
  const int64_t all = parts.value.numel();
  require(units > 0 ? all % units == 0 : all == 0, "sum_of_norm_bounds", ": ", all, " parts are not those of ", units,
          " units for each parameter");
  if (device::runs_on_device(parts.value)) {
    return on_device::sum_of_norm_bounds(parts, units);
  }
  const at::Tensor bounds = norm_upper_bound_sq(parts);
  at::Tensor sum = at::zeros({units}, at::kDouble);
  const double* bound = bounds.const_data_ptr<double>();
  double* out = sum.mutable_data_ptr<double>();
  for (int64_t i = 0; i < all; ++i) out[i % units] += bound[i];
  return sum;
}

}  // namespace ghostshard::kernels
