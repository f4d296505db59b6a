// Box–Muller in float32 whose bits are the same on every machine: additions, multiplications, square roots and
// conversions only, each correctly rounded by IEEE 754, none fused. Host and device compile the same text; every file
// that includes it must be compiled without contraction (-ffp-contract=off, -fmad=false).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/host_device.h"

namespace ghostshard::kernels {

// ln(1+f) for 1+f in [sqrt(1/2), sqrt(2)), relative error below 2 units in the last place, exact sign and zero.
// Coefficients of the Cephes library's logf (S. Moshier, netlib.org/cephes).
GHOSTSHARD_HOST_DEVICE float log1p_reduced(float f) {
  const float f2 = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  return f + (p * f * f2 - 0.5f * f2);
}

// −ln of the uniform number (bits + 1/2)·2^-64, with relative precision at both ends. In the upper half the complement
// v is used, as ln(1 − v): a number close to 1 is represented by its distance from 1.
GHOSTSHARD_HOST_DEVICE float negative_log_uniform(uint32_t high, uint32_t low) {
  const uint32_t upper = 0u - (high >> 31);                // all ones in the upper half
  const auto v_high = static_cast<int32_t>(high ^ upper);  // below 2^31: a signed conversion does
  const auto v_low = static_cast<int32_t>((low ^ upper) >> 1);
  const float v = static_cast<float>(v_high) * 0x1p-32f + (static_cast<float>(v_low) + 0.5f) * 0x1p-63f;  // (0, 1/2]

  // Lower half: v = m·2^e with m in [sqrt(1/2), sqrt(2)). The constant moves that interval's start to a power of two.
  constexpr int32_t kSqrtHalf = 0x3f3504f3;
  const auto bits = __builtin_bit_cast(int32_t, v);
  const int32_t exponent = (bits - kSqrtHalf) >> 23;
  const float mantissa = __builtin_bit_cast(float, bits - static_cast<int32_t>(static_cast<uint32_t>(exponent) << 23));

  // Upper half: 1 − v, or twice that if 1 − v is below sqrt(1/2); both differences from 1 are exact.
  constexpr float kOneLessSqrtHalf = 0.29289323f;
  const bool doubled = v > kOneLessSqrtHalf;
  const float upper_f = doubled ? 1.0f - (v + v) : -v;
  const float upper_exponent = doubled ? -1.0f : 0.0f;

  const float f = upper ? upper_f : mantissa - 1.0f;
  const float e = upper ? upper_exponent : static_cast<float>(exponent);
  // ln 2 in two parts, so that e times the first is exact.
  return -(e * 0.693359375f + (log1p_reduced(f) + e * -2.12194440e-4f));
}

struct SineCosine {
  float sine;
  float cosine;
};

// Of a uniform angle: two bits choose the quarter turn, the others an angle within ±pi/4 of its middle.
GHOSTSHARD_HOST_DEVICE SineCosine sine_cosine_uniform(uint32_t high, uint32_t low) {
  const auto fraction = static_cast<int32_t>(high & 0x3fffffffu) - 0x20000000;
  const float turn =
      static_cast<float>(fraction) * 0x1p-30f + (static_cast<float>(static_cast<int32_t>(low >> 1)) + 0.5f) * 0x1p-61f;
  const float x = turn * 1.57079633f;  // [-pi/4, pi/4]
  const float x2 = x * x;
  // Cephes sinf and cosf.
  const float sine = ((-1.9515295891e-4f * x2 + 8.3321608736e-3f) * x2 - 1.6666654611e-1f) * x2 * x + x;
  const float cosine = ((2.443315711809948e-5f * x2 - 1.388731625493765e-3f) * x2 + 4.166664568298827e-2f) * (x2 * x2) -
                       0.5f * x2 + 1.0f;
  const bool odd = (high & 0x40000000u) != 0;
  const float first = odd ? cosine : sine;
  const float second = odd ? sine : cosine;
  // Quarter turns: (s,c), (c,-s), (-s,-c), (-c,s).
  const uint32_t sine_sign = high & 0x80000000u;
  const uint32_t cosine_sign = (high ^ (high << 1)) & 0x80000000u;
  return {.sine = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, first) ^ sine_sign),
          .cosine = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, second) ^ cosine_sign)};
}

struct NormalPair {
  float cosine;
  float sine;
};

// Two standard normals from four words of keystream: radius low, radius high, angle low, angle high.
GHOSTSHARD_HOST_DEVICE NormalPair normal_pair(const uint32_t* words) {
  const float radius = sqrtf(2.0f * negative_log_uniform(words[1], words[0]));
  const SineCosine angle = sine_cosine_uniform(words[3], words[2]);
  return {.cosine = radius * angle.cosine, .sine = radius * angle.sine};
}

}  // namespace ghostshard::kernels
