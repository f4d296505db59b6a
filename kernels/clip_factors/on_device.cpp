// Clip factors, for bounds on a device.
#include "kernels/device/on_device.h"
#include "kernels/clip_factors/device.h"
#include "kernels/device/placement.h"

namespace ghostshard::kernels::on_device {

at::Tensor clip_factors(const at::Tensor& squared_norms, double limit) {
  const c10::DeviceGuard guard(squared_norms.device());
  const int64_t units = squared_norms.size(0);
  at::Tensor factors = at::empty({units}, squared_norms.options().dtype(at::kFloat));
  device::clip_factors(squared_norms.const_data_ptr<double>(), units, limit, factors.mutable_data_ptr<float>(),
                       device::current_stream(squared_norms));
  return factors;
}

}  // namespace ghostshard::kernels::on_device
