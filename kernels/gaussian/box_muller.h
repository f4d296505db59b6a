// Keystream to standard normals, the arithmetic half of gaussian.h.
#pragma once

#include <cstdint>

namespace ghostshard::kernels {

// z[2i], z[2i+1] from the 32-bit words 4i … 4i+3 (radius low, radius high, angle low, angle high).
void box_muller(const uint32_t* words, float* z, int64_t pairs);

}  // namespace ghostshard::kernels
