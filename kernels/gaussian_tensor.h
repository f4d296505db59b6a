// kernels/gaussian.h for a tensor, wherever it is: the same bits on every device.
#pragma once

#include <ATen/ATen.h>

#include "kernels/gaussian.h"

namespace ghostshard::kernels {

// As add_gaussian into a span; out contiguous float32 of any shape. Throws std::invalid_argument on another tensor too.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out);
// Into the `count` elements of out from `offset` on alone, without making a view; std::invalid_argument unless out has
// them.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out, int64_t offset,
                  int64_t count);

}  // namespace ghostshard::kernels
