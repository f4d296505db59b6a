// Memory for the large tensors that come and go with every microbatch: logits, held gradients, messages.
//
// A heap maps such blocks anew each time and gives them back, so that every use pays for fresh pages, which costs more
// than what is computed on them. Here they come from one range of addresses whose pages stay: the lowest place that
// fits, and what is given back is joined with its neighbours. The range holds no more than was in use at once (and
// holes between), takes huge pages where the system lends them, and idle pages go back on request: from Python before
// each forward, whose activations need the memory that a backward's messages took.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::fsdp {

// For messages: float32 [elements], contiguous, of any values or of zeros. On a device they come from LibTorch's
// allocator, which hands what was given back to the next of the same size. std::bad_alloc where there is no memory.
at::Tensor mapped_message(int64_t elements, at::Device device = at::kCPU);
at::Tensor mapped_zeros(int64_t elements, at::Device device = at::kCPU);

// As at::empty; from the range where a heap would map it (glibc: from 32 MiB on), on a CPU.
at::Tensor mapped_empty(at::IntArrayRef sizes, const at::TensorOptions& options);

// Whether idle pages stay (they do at first). Where not, messages give their own back at once and mapped_empty
// leaves memory to the heap: for programs whose heap keeps what is freed (fsdp/host_memory.h), which idle pages would
// add to.
void keep_idle_memory(bool keep);

// Pages that no tensor uses go back to the system; the next use pays for fresh ones.
void give_back_idle_memory();

}  // namespace ghostshard::fsdp
