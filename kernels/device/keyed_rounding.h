// Numbers rounded to bfloat16 at random, by bits that follow from purpose, parameter, step and element alone: the same
// on every rank, for every cut and after a resume. They come from no secret key and serve nothing that is to be kept
// secret; the noise of releases has a generator of its own (kernels/gaussian.h). Pure; host and device compile the same
// text.
#pragma once

#include <cstdint>

#include "kernels/device/host_device.h"

namespace ghostshard::kernels {

// A mix of 32 bits (lowbias32 of C. Wellons' search for hash functions): every bit of the element's position and of the
// stream moves every bit of the result.
GHOSTSHARD_HOST_DEVICE uint32_t rounding_bits(uint32_t stream, uint64_t element) {
  uint32_t x = static_cast<uint32_t>(element) ^ stream ^ (static_cast<uint32_t>(element >> 32) * 0x9e3779b1U);
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

// What is rounded: each purpose has streams of its own.
enum class Rounded : uint32_t { kMoments = 0x243f6a88U, kWeights = 0x85a308d3U };

// Mixed once for each part, so that neighbours in parameter and step have nothing in common.
GHOSTSHARD_HOST_DEVICE uint32_t rounding_stream_of(Rounded what, uint32_t parameter, int64_t step) {
  return rounding_bits(rounding_bits(static_cast<uint32_t>(what), parameter), static_cast<uint64_t>(step));
}

// The number's two neighbours in bfloat16 are taken with the probabilities that keep its mean, for 16 uniform bits.
// What is not finite stays so.
GHOSTSHARD_HOST_DEVICE uint16_t round_to_bfloat16(float value, uint32_t sixteen_bits) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
  const uint32_t rounded = finite ? bits + sixteen_bits : bits | ((bits & 0xffffU) != 0 ? 0x10000U : 0U);
  return static_cast<uint16_t>(rounded >> 16);
}
GHOSTSHARD_HOST_DEVICE float from_bfloat16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

}  // namespace ghostshard::kernels
