#include "kernels/coded_weights.h"

#include <algorithm>

#include "kernels/coded_weights/host_loops.h"
#include "kernels/device/on_device.h"
#include "kernels/device/placement.h"
#include "kernels/host/checks.h"
#include "kernels/host/stretches.h"

namespace ghostshard::kernels {
namespace {

void check(const char* op, const at::Tensor& weights, const at::Tensor& codes, const at::Tensor& scales) {
  require(weights.defined() && weights.dim() == 1, op, ": weights must be flat");
  require_shape(op, "weights", weights, weights.sizes(), weights.scalar_type(), weights.device());
  require_shape(op, "codes", codes, weights.sizes(), at::kByte, weights.device());
  require_shape(op, "scales", scales, {weight_stretches(weights.numel())}, at::kFloat, weights.device());
}

template <typename T>
void decode_to(const at::Tensor& codes, const at::Tensor& scales, WeightCode code, T* to, int64_t n) {
  const auto* const from = codes.const_data_ptr<uint8_t>();
  const float* const scale = scales.const_data_ptr<float>();
  for_each_stretch(n, kWeightStretch, [&](int64_t s, int64_t at, int64_t count) {
    decode_weight_stretch(from + at, scale[s], code, to + at, count);
  });
}

}  // namespace

void encode_weights(const at::Tensor& weights, WeightCode code, const at::Tensor& codes, const at::Tensor& scales) {
  constexpr const char* op = "encode_weights";
  check(op, weights, codes, scales);
  require(weights.scalar_type() == at::kFloat, op, ": weights must be float32; got ", weights.scalar_type());
  if (device::runs_on_device(weights)) return on_device::encode_weights(weights, code, codes, scales);
  const float* const from = weights.const_data_ptr<float>();
  auto* const to = codes.mutable_data_ptr<uint8_t>();
  float* const scale = scales.mutable_data_ptr<float>();
  for_each_stretch(weights.numel(), kWeightStretch, [&](int64_t s, int64_t at, int64_t count) {
    encode_weight_stretch(from + at, code, to + at, scale + s, count);
  });
}

void decode_weights(const at::Tensor& codes, const at::Tensor& scales, WeightCode code, const at::Tensor& weights) {
  constexpr const char* op = "decode_weights";
  check(op, weights, codes, scales);
  const bool narrow = weights.scalar_type() == at::kBFloat16;
  require(narrow || weights.scalar_type() == at::kFloat, op, ": weights must be float32 or bfloat16; got ",
          weights.scalar_type());
  if (device::runs_on_device(weights)) return on_device::decode_weights(codes, scales, code, weights);
  if (!narrow) return decode_to(codes, scales, code, weights.mutable_data_ptr<float>(), weights.numel());
  decode_to(codes, scales, code, reinterpret_cast<uint16_t*>(weights.mutable_data_ptr<at::BFloat16>()),
            weights.numel());
}

}  // namespace ghostshard::kernels
