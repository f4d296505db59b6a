// Weights to bfloat16, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/rounded_weights/device.h"

namespace ghostshard::kernels::on_device {

void round_weights(const at::Tensor& values, uint32_t stream_of_bits, uint64_t first_element,
                   const at::Tensor& stored) {
  const c10::DeviceGuard guard(values.device());
  device::round_weights(values.const_data_ptr<float>(), stream_of_bits, first_element,
                        reinterpret_cast<uint16_t*>(stored.mutable_data_ptr<at::BFloat16>()), values.numel(),
                        device::current_stream(values));
}

}  // namespace ghostshard::kernels::on_device
