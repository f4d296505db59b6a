// The device's half of norm_parts.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// bounds[u] for u < units, float64.
void norm_upper_bounds(const Parts& parts, int64_t units, double* bounds, Stream stream);
// sums[u] = sum of the bounds of parts u, u + units, u + 2·units, …, in this order; `parameters` of them. float64.
void sums_of_norm_bounds(const Parts& parts, int64_t parameters, int64_t units, double* sums, Stream stream);

}  // namespace ghostshard::kernels::device
