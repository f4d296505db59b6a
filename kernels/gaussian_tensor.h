// kernels/gaussian.h for a tensor, wherever it is: the same bits on every device.
#pragma once

#include <ATen/ATen.h>

#include "kernels/gaussian.h"

namespace ghostshard::kernels {

// As add_gaussian into a span; out contiguous float32 of any shape. Throws std::invalid_argument on another tensor too.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out);

}  // namespace ghostshard::kernels
