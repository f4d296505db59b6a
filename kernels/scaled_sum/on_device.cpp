// The clipped sum, for tensors on a device.
#include "kernels/device/on_device.h"

#include <algorithm>

#include "kernels/device/placement.h"
#include "kernels/device/rounding.h"
#include "kernels/device/tensors.h"
#include "kernels/device/tiles.h"
#include "kernels/host/checks.h"
#include "kernels/scaled_sum/device.h"

namespace ghostshard::kernels::on_device {
namespace {

// In how many parts the units of a matrix [p,d] are summed side by side, so that a matrix of few tiles occupies the
// device too: four rounds of blocks on the some 130 multiprocessors of a large GPU. The same on every device, because
// the parts decide the order of a sum. A unit's term passes as many additions as in one part, or fewer.
int64_t parts_of_units(device::ElementType element, int64_t outputs, int64_t inputs, int64_t units) {
  constexpr int64_t kBlocks = 528, kMostParts = 8;
  const int64_t tiles = device::rectangle_tiles(outputs, inputs, device::side_of(element));
  return std::clamp<int64_t>(device::ceil_div(kBlocks, std::max<int64_t>(tiles, 1)), 1,
                             std::clamp<int64_t>(units, 1, kMostParts));
}

}  // namespace

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
  const int64_t parts = parts_of_units(rows.a.element, g.size(1), a.size(1), segments.units());
  at::Tensor sums = parts > 1 ? at::empty({parts, g.size(1), a.size(1)}, out.options()) : out;
  device::add_scaled_products(rows.a, rows.g, {.offsets = offsets.const_data_ptr<int64_t>(), .count = segments.units()},
                              factors.const_data_ptr<float>(), parts, sums.mutable_data_ptr(),
                              device::current_stream(a));
  if (parts > 1) scaled_sum_held(sums, at::ones({parts}, factors.options()), out);
}

int64_t roundings_of_scaled_sum(at::ScalarType type, int64_t rows) {
  // Scaling an accumulator rounds once, and so does its addition to out.
  return device::sum_terms(device_element("scaled_sum_rows", "rows", type), rows) + 2;
}

}  // namespace ghostshard::kernels::on_device
