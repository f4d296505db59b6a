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
  const bool all_finite = device::is_finite(value) && device::is_finite(value_error) && device::is_finite(sum_error) &&
                          device::is_finite(squared);
  // No partial sum of the unit's rows exceeds the mass: below 2^126 none overflows in float32, whatever cancels.
  return all_finite && mass < 0x1p126 ? squared : HUGE_VAL;
}

// The two uses of a tied table are added to one sum, one after the other. If they cancel, the first would wash out the
// others' last digits there: so the norms of both together count as at most kTiedNorms times their sum's. `apart`: the
// two squared norms and their errors, added up, 0 if they are counted elsewhere; value, error: of the sum. Returns the
// error that says so.
constexpr double kTiedNorms = 2;
GHOSTSHARD_HOST_DEVICE double error_of_tied(double apart, double value, double error) {
  // (n_E + n_H)² ≤ 2(n_E² + n_H²).
  const double least = 2 * apart / (kTiedNorms * kTiedNorms) - value;
  return apart > 0 && least > error ? least : error;
}

// |squared − b²| for any b within `distance` of the root of `squared`, rounded up.
GHOSTSHARD_HOST_DEVICE double distance_of_squares(double squared, double distance) {
  return distance * (2 * sqrt(squared) + distance) * (1 + 0x1p-40);
}

}  // namespace ghostshard::kernels
