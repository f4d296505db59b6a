// The device's half of rounded_weights.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include <cstdint>

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// Of n elements, with the same bits as on the host.
void round_weights(const float* values, uint32_t stream_of_bits, uint64_t first_element, uint16_t* stored, int64_t n,
                   Stream stream);

}  // namespace ghostshard::kernels::device
