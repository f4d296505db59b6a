// The device's half of clip_factors.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

void clip_factors(const double* squared_norms, int64_t units, double limit, float* factors, Stream stream);

}  // namespace ghostshard::kernels::device
