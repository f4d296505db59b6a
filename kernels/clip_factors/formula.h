// The formula of clip_factors.h for one unit; host and device compile the same text.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/host_device.h"
#include "kernels/device/rounding.h"

namespace ghostshard::kernels {

// Each operation is rounded as IEEE 754 says and none can be fused with another, so the bits are the same everywhere.
GHOSTSHARD_HOST_DEVICE float clip_factor(double squared_norm, double limit) {
  constexpr double kShrink = 1.0 - 0x1p-22;
  const double norm = sqrt(squared_norm);
  if (!device::is_finite(norm)) return 0.0F;  // neither not-a-number nor infinity
  const double exact = kShrink * (norm > limit ? limit / norm : 1.0);
  const auto rounded = static_cast<float>(exact);
  if (static_cast<double>(rounded) <= exact) return rounded;
  // Above exact, so above zero: the next number towards zero has the bits before it.
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, rounded) - 1);
}

}  // namespace ghostshard::kernels
