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
  require_dense(op, "held", held, held.device());
  require_dense(op, "out", out, held.device());
  require(held.dim() >= 1 && held.sizes().slice(1) == out.sizes() && held.scalar_type() == out.scalar_type(), op,
          ": held must be [units, shape of out] and of its dtype; got ", held.sizes(), " ", held.scalar_type(),
          " for out ", out.sizes(), " ", out.scalar_type());
  require(out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble, op,
          ": out must be float32 (or float64 in tests); got ", out.scalar_type());
  require_factors(op, factors, held.size(0), held.device());
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
  require_dense(op, "out", out, a.device());
  require(out.dim() == 2 && out.size(0) == g.size(1) && out.size(1) == a.size(1) &&
              out.scalar_type() == sum_type(a.scalar_type()),
          op, ": out must be [", g.size(1), ", ", a.size(1), "] of ", sum_type(a.scalar_type()), "; got ", out.sizes(),
          " of ", out.scalar_type());
  require_factors(op, factors, segments.units(), a.device());
  const c10::DeviceGuard guard(a.device());
  const at::Tensor offsets = uploaded(segments.offsets(), a);
  device::add_scaled_products(rows.a, rows.g, {.offsets = offsets.const_data_ptr<int64_t>(), .count = segments.units()},
                              factors.const_data_ptr<float>(), out.mutable_data_ptr(), device::current_stream(a));
}

int64_t roundings_of_scaled_sum(at::ScalarType type, int64_t rows) {
  // Scaling an accumulator rounds once, and so does adding it to what is there.
  return device::sum_terms(device_element("scaled_sum_rows", "rows", type), rows) + 2;
}

}  // namespace ghostshard::kernels::on_device
