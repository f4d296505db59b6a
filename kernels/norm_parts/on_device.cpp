// Bounds of norms, for parts on a device.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/device/tensors.h"
#include "kernels/host/checks.h"
#include "kernels/norm_parts/device.h"

namespace ghostshard::kernels::on_device {

at::Tensor norm_upper_bound_sq(const NormParts& parts) {
  const int64_t units = parts.value.numel();
  require_parts(parts, units, parts.value.device());
  const c10::DeviceGuard guard(parts.value.device());
  at::Tensor bounds = at::empty_like(parts.value);
  device::norm_upper_bounds(device_parts(parts), units, bounds.mutable_data_ptr<double>(),
                            device::current_stream(parts.value));
  return bounds;
}

at::Tensor sum_of_norm_bounds(const NormParts& parts, int64_t units) {
  const int64_t all = parts.value.numel();
  require_parts(parts, all, parts.value.device());
  const c10::DeviceGuard guard(parts.value.device());
  at::Tensor sums = at::empty({units}, parts.value.options());
  device::sums_of_norm_bounds(device_parts(parts), units == 0 ? 0 : all / units, units, sums.mutable_data_ptr<double>(),
                              device::current_stream(parts.value));
  return sums;
}

}  // namespace ghostshard::kernels::on_device
