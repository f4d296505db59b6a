// The device's half of gaussian.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"
#include "kernels/gaussian/chacha20_block.h"

namespace ghostshard::kernels::device {

// out[i] += scale·z(key, parameter, first + i) for i < count, with the same bits as on the host. first + count ≤ 2^64.
void add_gaussian(const ChaChaKeyWords& key, uint32_t parameter, uint64_t first, float scale, float* out,
                  uint64_t count, Stream stream);

}  // namespace ghostshard::kernels::device
