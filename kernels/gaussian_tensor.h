// kernels/gaussian.h for tensors: the same bits on every device.
#pragma once

#include <ATen/ATen.h>

#include "kernels/gaussian.h"

namespace ghostshard::kernels {

// As add_gaussian for a span. Throws std::invalid_argument also unless out is contiguous float32, of any shape.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out);
// The same for the `count` elements of out from `offset` on, without making a view. Throws std::invalid_argument unless
// out has them.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out, int64_t offset,
                  int64_t count);

}  // namespace ghostshard::kernels
