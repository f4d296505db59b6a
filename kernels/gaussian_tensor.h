// kernels/gaussian.h for tensors: the same bits on every device.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

#include "kernels/gaussian.h"

namespace ghostshard::kernels {

// As add_gaussian for a span. Throws std::invalid_argument also unless out is contiguous float32, of any shape.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out);
// The same for the `count` elements of out from `offset` on, without making a view. Throws std::invalid_argument unless
// out has them.
void add_gaussian(const ChaChaKey& key, uint32_t parameter, uint64_t first, float scale, at::Tensor out, int64_t offset,
                  int64_t count);

// Elements `first` up to first + count (exclusive) of a parameter, which stand in a tensor from `offset` on.
struct GaussianPart {
  uint32_t parameter;
  uint64_t first;
  int64_t offset;
  int64_t count;
};

// The same for parts of several parameters: on a device one launch for many of them.
void add_gaussian(const ChaChaKey& key, std::span<const GaussianPart> parts, float scale, const at::Tensor& out);

}  // namespace ghostshard::kernels
