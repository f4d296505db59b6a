// Memory for the large tensors that come and go with every microbatch: logits, held gradients, messages.
//
// A heap maps such tensors anew each time and unmaps them again. Every use then pays for fresh pages, which costs more
// than the computation on them. Here such tensors come from one range of addresses whose pages stay. A tensor takes the
// lowest place that fits, and a place that is given back is joined with its neighbours. The range holds the most that
// was in use at once and the holes between, and takes huge pages if the system lends them. Idle pages go back to the
// system on request: Python requests it before each forward, whose activations need the memory of a backward's
// messages.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::fsdp {

// For messages: float32 [elements], contiguous; mapped_message leaves the values undefined. On a device LibTorch's
// allocator serves them, which reuses freed memory for the next tensor of the same size. std::bad_alloc if there is no
// memory.
at::Tensor mapped_message(int64_t elements, at::Device device = at::kCPU);
at::Tensor mapped_zeros(int64_t elements, at::Device device = at::kCPU);

// As at::empty. On a CPU the tensor comes from the range if a heap would map it (glibc: from 32 MiB on).
at::Tensor mapped_empty(at::IntArrayRef sizes, const at::TensorOptions& options);

// Whether idle pages stay (they do at first). If not, messages give their pages back at once and mapped_empty uses the
// heap. For programs whose heap keeps freed memory (fsdp/host_memory.h): idle pages would come on top of it.
void keep_idle_memory(bool keep);

// Gives pages that no tensor uses back to the system; the next use pays for fresh ones.
void give_back_idle_memory();

}  // namespace ghostshard::fsdp
