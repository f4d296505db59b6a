// The bound of norm_parts.h for one unit; host and device compile the same text.
#pragma once

#include <cmath>

#include "kernels/device/rounding.h"

namespace ghostshard::kernels {

// A norm is certain enough if its error is at most this part of its value; otherwise it is found again in better
// arithmetic. A value or error that is not a number is never certain enough.
constexpr double kCertainRatio = 1e-3;
GHOSTSHARD_HOST_DEVICE bool certain_enough(double value, double error) { return error <= kCertainRatio * value; }

// The bound of norm_parts.h from the four parts of one unit.
GHOSTSHARD_HOST_DEVICE double norm_bound_sq(double value, double value_error, double mass, double sum_error) {
  // Covers the seven roundings of the two lines below, each of at most 2^-53 and doubled if the square comes after it.
  constexpr double kRoundUp = 1 + 0x1p-49;
  // std::max(value, 0) could turn a value that is not a number into 0.
  const double value_or_zero = value < 0 ? 0.0 : value;
  const double norm = sqrt(value_or_zero + value_error) + sum_error * mass;
  const double squared = norm * norm * kRoundUp;
  const bool all_finite = device::is_finite(value) && device::is_finite(value_error) && device::is_finite(mass) &&
                          device::is_finite(sum_error) && device::is_finite(squared);
  return all_finite ? squared : HUGE_VAL;
}

// |squared − b²| for any b within `distance` of the root of `squared`, rounded up.
GHOSTSHARD_HOST_DEVICE double distance_of_squares(double squared, double distance) {
  return distance * (2 * sqrt(squared) + distance) * (1 + 0x1p-40);
}

}  // namespace ghostshard::kernels
