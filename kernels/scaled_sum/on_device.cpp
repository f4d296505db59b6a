// The clipped sum, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/device/rounding.h"
#include "kernels/device/tensors.h"
#include "kernels/host/checks.h"
#include "kernels/scaled_sum/device.h"

namespace ghostshard::kernels::on_device {

void scaled_sum_held(const at::Tensor& held, const at::Tensor& factors, at::Tensor out) {
  constexpr const char* op = "scaled_sum_held";
  require_held_sum(op, held, factors, out, held.device());
  const c10::DeviceGuard guard(held.device());
  device::add_scaled_held(
      out.scalar_type() == at::kDouble ? device::ElementType::kFloat64 : device::ElementType::kFloat32,
      held.const_data_ptr(), factors.const_data_ptr<float>(), held.size(0), out.numel(), out.mutable_data_ptr(),
      device::current_stream(held));
}

void scaled_sum_rows(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const at::Tensor& factors,
                     at::Tensor out) {
  constexpr const char* op = "scaled_sum_rows";
  const DeviceRowPair rows = device_row_pair(op, a, g, segments);
  require_shape(op, "out", out, {g.size(1), a.size(1)}, sum_type(a.scalar_type()), a.device());
  require_factors(op, factors, segments.units(), a.device());
  const c10::DeviceGuard guard(a.device());
  const at::Tensor offsets = uploaded(segments.offsets(), a);
  device::add_scaled_products(rows.a, rows.g, {.offsets = offsets.const_data_ptr<int64_t>(), .count = segments.units()},
                              factors.const_data_ptr<float>(), out.mutable_data_ptr(), device::current_stream(a));
}

int64_t roundings_of_scaled_sum(at::ScalarType type, int64_t rows) {
  // Scaling an accumulator rounds once, and so does its addition to out.
  return device::sum_terms(device_element("scaled_sum_rows", "rows", type), rows) + 2;
}

}  // namespace ghostshard::kernels::on_device
