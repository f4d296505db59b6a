// AdamW, for tensors on a device.
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/quantised_moments/device.h"

namespace ghostshard::kernels::on_device {

void adamw_step(const AdamWTerms& terms, CodeSign second_sign, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentCodes& moments) {
  const c10::DeviceGuard guard(weights.device());
  device::adamw_coded(terms, second_sign, weights.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(),
                      {.first = moments.first.mutable_data_ptr<uint8_t>(),
                       .first_scale = moments.first_scale.mutable_data_ptr<float>(),
                       .second = moments.second.mutable_data_ptr<uint8_t>(),
                       .second_scale = moments.second_scale.mutable_data_ptr<float>()},
                      weights.numel(), device::current_stream(weights));
}

void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient, const at::Tensor& first,
                const at::Tensor& second) {
  const c10::DeviceGuard guard(weights.device());
  device::adamw_plain(terms, weights.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(),
                      first.mutable_data_ptr<float>(), second.mutable_data_ptr<float>(), weights.numel(),
                      device::current_stream(weights));
}

void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentHalves& moments) {
  const c10::DeviceGuard guard(weights.device());
  device::adamw_halves(terms, weights.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(),
                       halves_of(moments.first), halves_of(moments.second), moments.stream, moments.first_element,
                       weights.numel(), device::current_stream(weights));
}

}  // namespace ghostshard::kernels::on_device
