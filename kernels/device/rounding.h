// The rounding errors of a tile's sums. Pure; host and device compile the same text.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/tiles.h"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// A chain of float32 additions takes this many products before its sum is added to a second chain: errors grow as chunk
// + columns/chunk instead of as columns.
constexpr int64_t kChunk = 128;

// Roundings on the way of one product to its tile's entry, counted in units of 2^-24: |computed − exact| ≤
// gamma(terms)·(sum of absolute products), underflow apart.
//
// Plain arithmetic fuses multiplication and addition: one rounding a product. A tensor core forms 16-bit products
// exactly and adds 16 of them to the accumulator at once. Experiments (Fasi, Higham, Mikaitis and Pranesh, Numerical
// behavior of NVIDIA tensor cores, PeerJ CS 7:e330, 2021) show that terms are aligned to the largest and truncated
// there, and that the sum is truncated again, not rounded: 17 terms and one sum, each off by at most 2^-23 of the sum
// of magnitudes.
GHOSTSHARD_HOST_DEVICE int64_t sum_terms(ElementType element, int64_t length) {
  const int64_t within = length < kChunk ? length : kChunk;
  const int64_t chunks = length > 0 ? ceil_div(length, kChunk) : 1;
  const bool tensor_core = element == ElementType::kBFloat16 || element == ElementType::kFloat16;
  return (tensor_core ? 36 * ceil_div(within, 16) : within) + chunks - 1;
}

// n·u / (1 − n·u), infinite if that bounds nothing any more (kernels/norm_parts.h).
GHOSTSHARD_HOST_DEVICE double gamma_of(int64_t terms, double unit_roundoff) {
  const double nu = static_cast<double>(terms) * unit_roundoff;
  return nu < 1 ? nu / (1 - nu) : HUGE_VAL;
}

// Neither infinite nor not-a-number: such a number minus itself is not 0.
GHOSTSHARD_HOST_DEVICE bool is_finite(double x) { return x - x == 0; }  // NOLINT(misc-redundant-expression)

}  // namespace ghostshard::kernels::device
