// The rule and the codes of quantised_moments.h for one element; host and device compile the same text, without fused
// operations.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "kernels/device/host_device.h"
#include "kernels/device/keyed_rounding.h"

namespace ghostshard::kernels {

inline constexpr int kStretch = 256;

// The constants of one step of AdamW.
struct AdamWTerms {
  float decay;  // 1 − learning rate · weight decay
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float error_variance;  // taken out of g² before it is averaged
  float inverse_second;  // 1 / (1 − beta2^t)
  float shift;           // put back into the corrected second moment
  float least;           // of the corrected second moment
  float step_size;       // learning rate / (1 − beta1^t)
  float epsilon;
};

enum class CodeSign { kUnsigned, kSigned };
template <CodeSign kSign>
inline constexpr int kMagnitudeBits = kSign == CodeSign::kSigned ? 7 : 8;

GHOSTSHARD_HOST_DEVICE void adamw_element(const AdamWTerms& t, float g, float& weight, float& first, float& second) {
  first = t.beta1 * first + t.one_minus_beta1 * g;
  second = t.beta2 * second + t.one_minus_beta2 * (g * g - t.error_variance);
  const float corrected = second * t.inverse_second + t.shift;
  const float moment = corrected < t.least ? t.least : corrected;
  weight = weight * t.decay - t.step_size * first / (sqrtf(moment) + t.epsilon);
}

constexpr double power_of_tenth(int exponent) { return exponent == 0 ? 1.0 : power_of_tenth(exponent - 1) / 10; }

// Codes 2^level … 2^(level+1)−1: magnitudes in (bottom, top], evenly; the lowest decade has one code.
template <int kLevel, int kBits>
struct Decade {
  static constexpr int kCodes = 1 << kLevel;
  static constexpr double kTopExact = power_of_tenth(kBits - 1 - kLevel);
  static constexpr double kBottomExact = kLevel == 0 ? 0.0 : kTopExact / 10;
  static constexpr float kTop = static_cast<float>(kTopExact);
  static constexpr float kBottom = static_cast<float>(kBottomExact);
  static constexpr float kStep = static_cast<float>((kTopExact - kBottomExact) / kCodes);
  // ratio · kScale − kOffset: codes above the decade's bottom.
  static constexpr float kScale = static_cast<float>(kCodes / (kTopExact - kBottomExact));
  static constexpr float kOffset = static_cast<float>(kBottomExact * kCodes / (kTopExact - kBottomExact));
};

// The nearest magnitude to a ratio in [0, 1] (anything else: the largest).
template <int kBits, int... kLevel>
GHOSTSHARD_HOST_DEVICE int encode_magnitude(float ratio, std::integer_sequence<int, kLevel...> /*levels*/) {
  const float x = ratio <= 1.0F ? ratio : 1.0F;
  float scale = 0, offset = 0;
  int below = 0;
  // From the lowest decade up; the last one whose bottom lies below x counts.
  ((scale = kLevel == 0 || x > Decade<kLevel, kBits>::kBottom ? Decade<kLevel, kBits>::kScale : scale,
    offset = kLevel == 0 || x > Decade<kLevel, kBits>::kBottom ? Decade<kLevel, kBits>::kOffset : offset,
    below = kLevel == 0 || x > Decade<kLevel, kBits>::kBottom ? Decade<kLevel, kBits>::kCodes - 1 : below),
   ...);
  // Never negative; halves go up, on the host as on a device.
  return below + static_cast<int>(x * scale - offset + 0.5F);  // NOLINT(bugprone-incorrect-roundings)
}

template <int kBits, int... kLevel>
GHOSTSHARD_HOST_DEVICE float decode_magnitude(int code, std::integer_sequence<int, kLevel...> /*levels*/) {
  float top = 0, step = 0;
  int last = 0;
  ((top = code >= Decade<kLevel, kBits>::kCodes ? Decade<kLevel, kBits>::kTop : top,
    step = code >= Decade<kLevel, kBits>::kCodes ? Decade<kLevel, kBits>::kStep : step,
    last = code >= Decade<kLevel, kBits>::kCodes ? 2 * Decade<kLevel, kBits>::kCodes - 1 : last),
   ...);
  return top - step * static_cast<float>(last - code);
}

// value relative to a scale that is the largest magnitude of its stretch.
template <CodeSign kSign>
GHOSTSHARD_HOST_DEVICE uint8_t encode_moment(float value, float scale) {
  constexpr int kBits = kMagnitudeBits<kSign>;
  const float magnitude = value < 0 ? -value : value;
  const float ratio = scale == 0 ? 0.0F : magnitude / scale;
  const int code = encode_magnitude<kBits>(ratio, std::make_integer_sequence<int, kBits>());
  if (kSign == CodeSign::kUnsigned) return static_cast<uint8_t>(value < 0 ? 0 : code);
  return static_cast<uint8_t>(static_cast<int8_t>(value < 0 ? -code : code));
}

// The number that a byte stands for, relative to its scale.
template <CodeSign kSign>
GHOSTSHARD_HOST_DEVICE float decode_moment(uint8_t byte) {
  constexpr int kBits = kMagnitudeBits<kSign>;
  const int code = kSign == CodeSign::kSigned ? static_cast<int>(static_cast<int8_t>(byte)) : static_cast<int>(byte);
  const float magnitude = decode_magnitude<kBits>(code < 0 ? -code : code, std::make_integer_sequence<int, kBits>());
  return code < 0 ? -magnitude : magnitude;
}

// Half of the bits round one moment of an element, half the other.
GHOSTSHARD_HOST_DEVICE void adamw_element_of_halves(const AdamWTerms& t, float g, float& weight, uint16_t& first,
                                                    uint16_t& second, uint32_t random) {
  float m = from_bfloat16(first), v = from_bfloat16(second);
  adamw_element(t, g, weight, m, v);
  first = round_to_bfloat16(m, random & 0xffffU);
  second = round_to_bfloat16(v, random >> 16);
}

}  // namespace ghostshard::kernels
