// Biases, scales and shifts, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/affine_norm/device.h"
#include "kernels/device/placement.h"
#include "kernels/device/tensors.h"
#include "kernels/host/checks.h"

namespace ghostshard::kernels::on_device {
namespace {

void sum_rows(const char* op, const device::Matrix& g, const at::Tensor& g_tensor, const void* factors,
              const Segments& segments, at::Tensor& out, bool accumulate, const NormParts& parts) {
  const at::Device device = g_tensor.device();
  require_shape(op, "out", out, {segments.units(), g.columns}, sum_type(g_tensor.scalar_type()), device);
  require_parts(parts, segments.units(), device);
  const c10::DeviceGuard guard(device);
  const at::Tensor offsets = uploaded(segments.offsets(), g_tensor);
  const at::Tensor partials =
      at::empty({segments.units(), device::strips_of(g.columns)}, g_tensor.options().dtype(at::kDouble));
  device::sum_rows_of_units({.g = g,
                             .factors = factors,
                             .units = {.offsets = offsets.const_data_ptr<int64_t>(), .count = segments.units()},
                             .out = out.mutable_data_ptr(),
                             .accumulate = accumulate,
                             .partials = partials.mutable_data_ptr<double>(),
                             .parts = device_parts(parts)},
                            device::current_stream(g_tensor));
}

}  // namespace

void per_unit_row_sum(const at::Tensor& g, const Segments& segments, at::Tensor out, bool accumulate,
                      const NormParts& parts) {
  constexpr const char* op = "per_unit_row_sum";
  const device::Matrix rows = device_matrix(op, "g", g, g.device());
  require_rows(op, "g", g, segments);
  sum_rows(op, rows, g, nullptr, segments, out, accumulate, parts);
}

void per_unit_product_sum(const at::Tensor& g, const at::Tensor& x_hat, const Segments& segments, at::Tensor out,
                          bool accumulate, const NormParts& parts) {
  constexpr const char* op = "per_unit_product_sum";
  require_dense(op, "g", g, g.device());
  require_dense(op, "x_hat", x_hat, g.device());
  const DeviceRowPair rows = device_row_pair(op, g, x_hat, segments);
  require(g.size(1) == x_hat.size(1), op, ": g and x_hat must have one shape; got ", g.sizes(), " and ", x_hat.sizes());
  sum_rows(op, rows.a, g, rows.g.data, segments, out, accumulate, parts);
}

}  // namespace ghostshard::kernels::on_device
