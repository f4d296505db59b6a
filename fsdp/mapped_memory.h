// Memory for large messages that come and go within a step.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::fsdp {

// float32 zeros [elements], contiguous. Large ones in host memory are mapped for themselves, in huge pages where the
// system lends them, and go back to the system with the last reference: a heap would keep them, and grow by the holes
// between what came and went around them. std::bad_alloc where there is no memory. On a device they come from
// LibTorch's allocator, which hands what was given back to the next of the same size.
at::Tensor mapped_zeros(int64_t elements, at::Device device = at::kCPU);

}  // namespace ghostshard::fsdp
