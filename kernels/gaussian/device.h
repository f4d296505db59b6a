// The device's half of gaussian.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/device/types.h"
#include "kernels/gaussian/chacha20_block.h"

namespace ghostshard::kernels::device {

// Elements of one parameter from `first` on, and where they stand. first + count ≤ 2^64.
struct GaussianRange {
  uint32_t parameter;
  uint64_t first;
  float* out;
  uint64_t count;
};

// out[i] += scale·z(key, parameter, first + i) for i < count in each range, with the same bits as on the host. No two
// ranges have an element of out in common.
void add_gaussian(const ChaChaKeyWords& key, std::span<const GaussianRange> ranges, float scale, Stream stream);

}  // namespace ghostshard::kernels::device
