// Codes of weights, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/coded_weights/device.h"
#include "kernels/device/placement.h"

namespace ghostshard::kernels::on_device {

void encode_weights(const at::Tensor& weights, WeightCode code, const at::Tensor& codes, const at::Tensor& scales) {
  const c10::DeviceGuard guard(weights.device());
  device::encode_weights(code, weights.const_data_ptr<float>(), codes.mutable_data_ptr<uint8_t>(),
                         scales.mutable_data_ptr<float>(), weights.numel(), device::current_stream(weights));
}

void decode_weights(const at::Tensor& codes, const at::Tensor& scales, WeightCode code, const at::Tensor& weights) {
  const c10::DeviceGuard guard(weights.device());
  const bool narrow = weights.scalar_type() == at::kBFloat16;
  device::decode_weights(code, codes.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
                         narrow ? device::ElementType::kBFloat16 : device::ElementType::kFloat32,
                         weights.mutable_data_ptr(), weights.numel(), device::current_stream(weights));
}

}  // namespace ghostshard::kernels::on_device
