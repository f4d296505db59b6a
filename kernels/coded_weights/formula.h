// The codes of coded_weights.h for one element; host and device compile the same text.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/host_device.h"

namespace ghostshard::kernels {

inline constexpr int kWeightStretch = 256;

enum class WeightCode { kInt8, kFloat8 };
template <WeightCode kCode>
inline constexpr float kLargestCode = kCode == WeightCode::kInt8 ? 127.0F : 448.0F;

// E4M3 of |x| <= 448 (anything beyond: 448), halves to even.
GHOSTSHARD_HOST_DEVICE uint8_t to_float8(float x) {
  constexpr uint32_t kLeastNormal = 0x3c800000U;  // 2^-6
  constexpr uint32_t kBias = (127U - 7U) << 3;    // of float32's exponent over E4M3's, beside 3 bits of fraction
  constexpr uint32_t kMost = 0x7eU;               // 448; the code after it is no number
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t normal = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - kBias;
  // Below the least normal number codes count steps of 2^-9, and the eighth step is that number's code.
  const auto steps = static_cast<uint32_t>(
      static_cast<int32_t>(rintf(magnitude < kLeastNormal ? __builtin_bit_cast(float, magnitude) * 512.0F : 0.0F)));
  const uint32_t code = magnitude < kLeastNormal ? steps : normal;
  return static_cast<uint8_t>((code < kMost ? code : kMost) | ((bits >> 24) & 0x80U));
}

GHOSTSHARD_HOST_DEVICE float from_float8(uint8_t code) {
  constexpr uint32_t kBias = (127U - 7U) << 3;
  const uint32_t magnitude = code & 0x7fU;
  const float normal = __builtin_bit_cast(float, (magnitude + kBias) << 20);
  const float value = magnitude < 8 ? static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9F : normal;
  return (code & 0x80U) != 0 ? -value : value;
}

template <WeightCode kCode>
GHOSTSHARD_HOST_DEVICE float scale_of_weights(float largest) {
  return largest / kLargestCode<kCode>;
}

template <WeightCode kCode>
GHOSTSHARD_HOST_DEVICE uint8_t encode_weight(float weight, float scale) {
  // A scale that is no number gives zeros, which it makes no numbers again.
  const float ratio = scale > 0 ? weight / scale : 0.0F;
  if constexpr (kCode == WeightCode::kFloat8) return to_float8(ratio);
  const float nearest = rintf(ratio);
  const float least = nearest > -127.0F ? nearest : -127.0F;  // of no number too
  return static_cast<uint8_t>(static_cast<int8_t>(least < 127.0F ? least : 127.0F));
}

template <WeightCode kCode>
GHOSTSHARD_HOST_DEVICE float decode_weight(uint8_t code, float scale) {
  if constexpr (kCode == WeightCode::kFloat8) return from_float8(code) * scale;
  return static_cast<float>(static_cast<int8_t>(code)) * scale;
}

GHOSTSHARD_HOST_DEVICE void store_weight(float value, float& to) { to = value; }
// bfloat16, to the nearest, halves to even. What is not finite stays so.
GHOSTSHARD_HOST_DEVICE void store_weight(float value, uint16_t& to) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
  const uint32_t nearest = bits + 0x7fffU + ((bits >> 16) & 1U);
  const uint32_t kept = bits | ((bits & 0xffffU) != 0 ? 0x10000U : 0U);
  to = static_cast<uint16_t>((finite ? nearest : kept) >> 16);
}

}  // namespace ghostshard::kernels
