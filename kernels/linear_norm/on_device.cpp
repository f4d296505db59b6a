// Norms of layers that are affine in a matrix, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/device/tensors.h"
#include "kernels/host/checks.h"
#include "kernels/linear_norm/device.h"
#include "kernels/linear_norm/tile_plan.h"
#include "kernels/linear_norm/workspace.h"

namespace ghostshard::kernels::on_device {
namespace {

void require_device_parts(const at::Tensor& a, const Segments& segments, const NormParts& parts) {
  require_parts(parts, segments.units(), a.device());
}

LinearShape shape_of(const at::Tensor& a, const at::Tensor& g) { return {.inputs = a.size(1), .outputs = g.size(1)}; }

device::GradientWork gradient_work(const DeviceRowPair& rows, const device::Units& units, const DeviceTiles& tiles) {
  return {.a = rows.a,
          .g = rows.g,
          .units = units,
          .tiles = tiles.tiles,
          .partials = tiles.partials.mutable_data_ptr<double>()};
}

// first: the tiles of the units whose Gram matrices are tried in the rows' own arithmetic. last: the tiles by which the
// norms of all other units are found, and those of units that were not certain enough. Only the device knows which
// units those are: blocks of the others end at once.
void add_row_norms(const DeviceRowPair& rows, const at::Tensor& like, const Segments& segments,
                   const std::vector<int64_t>& first, const PassingTiles& last, const NormParts& parts) {
  const RowsWorkspace space(rows, like, segments);
  const device::UnitRowsWork& work = space.work();
  const device::Parts to = device_parts(parts);
  device::measure_rows(work, space.stream());
  device::add_masses(work, to, space.stream());
  const auto by_gram = [&](const std::vector<int64_t>& before, auto add) {
    if (before.back() == 0) return;
    const DeviceTiles tiles(before, 3, like);
    add(work, tiles.tiles, tiles.partials.mutable_data_ptr<double>(), to, space.stream());
  };
  by_gram(first, &device::add_gram_norms);
  if (last.gradient.back() > 0) {
    const DeviceTiles tiles(last.gradient, 1, like);
    device::add_passing_norms(gradient_work(rows, work.units, tiles), work, to, space.stream());
  }
  by_gram(last.gram, &device::add_gram_norms_float64);
}

// For units that the rows' own arithmetic leaves uncertain: Gram matrices in float64, or the gradient if that is
// sooner.
PassingTiles last_of(const at::Tensor& a, const LinearShape& shape, const Segments& segments, int64_t side) {
  const bool narrow = a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf;
  return passing_tiles_before(shape, segments, narrow ? kFloat64OverTensorCores : kFloat64OverFloat32,
                              {.gradient = side});
}

}  // namespace

void per_unit_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, at::Tensor out,
                       bool accumulate, const NormParts& parts) {
  constexpr const char* op = "per_unit_gradient";
  const DeviceRowPair rows = device_row_pair(op, a, g, segments);
  const int64_t units = segments.units(), inputs = a.size(1), outputs = g.size(1);
  require_shape(op, "out", out, {units, outputs, inputs}, sum_type(a.scalar_type()), a.device());
  require_device_parts(a, segments, parts);
  const c10::DeviceGuard guard(a.device());
  const at::Tensor offsets = uploaded(segments.offsets(), a);
  const DeviceTiles tiles(
      gradient_tiles_before({.inputs = inputs, .outputs = outputs}, segments, device::side_of(rows.a.element)), 1, a);
  device::hold_gradients(gradient_work(rows, {.offsets = offsets.const_data_ptr<int64_t>(), .count = units}, tiles),
                         out.mutable_data_ptr(), accumulate, device_parts(parts), device::current_stream(a));
}

void gram_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const NormParts& parts) {
  const DeviceRowPair rows = device_row_pair("gram_norm", a, g, segments);
  require_device_parts(a, segments, parts);
  const c10::DeviceGuard guard(a.device());
  const int64_t side = device::side_of(rows.a.element);
  const std::vector<int64_t> grams = gram_tiles_before(segments, side);
  const bool exact = a.scalar_type() == at::kDouble;
  add_row_norms(rows, a, segments, grams, exact ? PassingTiles{grams, {0}} : last_of(a, shape_of(a, g), segments, side),
                parts);
}

void passing_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const NormParts& parts) {
  const DeviceRowPair rows = device_row_pair("passing_norm", a, g, segments);
  require_device_parts(a, segments, parts);
  const c10::DeviceGuard guard(a.device());
  const int64_t side = device::side_of(rows.a.element);
  const PassingTiles sooner = passing_tiles_before(shape_of(a, g), segments, 1, {.gram = side, .gradient = side});
  const bool exact = a.scalar_type() == at::kDouble;
  add_row_norms(rows, a, segments, sooner.gram, exact ? sooner : last_of(a, shape_of(a, g), segments, side), parts);
}

}  // namespace ghostshard::kernels::on_device
