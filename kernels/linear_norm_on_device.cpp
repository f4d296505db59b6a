// Norms of layers that are affine in a matrix, for tensors on a device.
#include "kernels/checks.h"
#include "kernels/device/placement.h"
#include "kernels/device_plan.h"
#include "kernels/device_tensors.h"
#include "kernels/device_workspace.h"
#include "kernels/linear_norm_device.h"
#include "kernels/norm_parts_device.h"
#include "kernels/on_device.h"

namespace ghostshard::kernels::on_device {
namespace {

void require_device_parts(const at::Tensor& a, const Segments& segments, const NormParts& parts) {
  require_parts(parts, segments.units(), a.device());
}

device::GradientWork gradient_work(const DeviceRowPair& rows, const device::Units& units, const DeviceTiles& tiles) {
  return {.a = rows.a,
          .g = rows.g,
          .units = units,
          .tiles = tiles.tiles,
          .partials = tiles.partials.mutable_data_ptr<double>()};
}

void add_gram_norms(const RowsWorkspace& space, const DeviceTiles& tiles, const NormParts& parts) {
  device::add_gram_norms(space.work(), tiles.tiles, tiles.partials.mutable_data_ptr<double>(), device_parts(parts),
                         space.stream());
}

}  // namespace

void per_unit_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, at::Tensor out,
                       bool accumulate, const NormParts& parts) {
  constexpr const char* op = "per_unit_gradient";
  const DeviceRowPair rows = device_row_pair(op, a, g, segments);
  const int64_t units = segments.units(), inputs = a.size(1), outputs = g.size(1);
  require_dense(op, "out", out, a.device());
  require(out.dim() == 3 && out.size(0) == units && out.size(1) == outputs && out.size(2) == inputs &&
              out.scalar_type() == sum_type(a.scalar_type()),
          op, ": out must be [", units, ", ", outputs, ", ", inputs, "] of ", sum_type(a.scalar_type()), "; got ",
          out.sizes(), " of ", out.scalar_type());
  require_device_parts(a, segments, parts);
  const c10::DeviceGuard guard(a.device());
  const at::Tensor offsets = uploaded(segments.offsets(), a);
  const DeviceTiles tiles(gradient_tiles_before({.inputs = inputs, .outputs = outputs}, segments), 1, a);
  device::hold_gradients(gradient_work(rows, {.offsets = offsets.const_data_ptr<int64_t>(), .count = units}, tiles),
                         out.mutable_data_ptr(), accumulate, device_parts(parts), device::current_stream(a));
}

void gram_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const NormParts& parts) {
  const DeviceRowPair rows = device_row_pair("gram_norm", a, g, segments);
  require_device_parts(a, segments, parts);
  const c10::DeviceGuard guard(a.device());
  const RowsWorkspace space(rows, a, segments);
  device::measure_rows(space.work(), space.stream());
  device::add_masses(space.work(), nullptr, device_parts(parts), space.stream());
  add_gram_norms(space, DeviceTiles(gram_tiles_before(segments), 3, a), parts);
}

void passing_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const NormParts& parts) {
  const DeviceRowPair rows = device_row_pair("passing_norm", a, g, segments);
  require_device_parts(a, segments, parts);
  const c10::DeviceGuard guard(a.device());
  const RowsWorkspace space(rows, a, segments);
  const PassingTiles before = passing_tiles_before({.inputs = a.size(1), .outputs = g.size(1)}, segments);
  const DeviceTiles gradient(before.gradient, 1, a);
  device::measure_rows(space.work(), space.stream());
  device::add_masses(space.work(), &gradient.tiles, device_parts(parts), space.stream());
  if (before.gram.back() > 0) add_gram_norms(space, DeviceTiles(before.gram, 3, a), parts);
  if (before.gradient.back() > 0) {
    device::add_passing_norms(gradient_work(rows, space.work().units, gradient), space.work().wanted,
                              device_parts(parts), space.stream());
  }
}

at::Tensor norm_upper_bound_sq(const NormParts& parts) {
  const int64_t units = parts.value.numel();
  require_parts(parts, units, parts.value.device());
  const c10::DeviceGuard guard(parts.value.device());
  at::Tensor bounds = at::empty_like(parts.value);
  device::norm_upper_bounds(device_parts(parts), units, bounds.mutable_data_ptr<double>(),
                            device::current_stream(parts.value));
  return bounds;
}

}  // namespace ghostshard::kernels::on_device
