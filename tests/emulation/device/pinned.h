// Page-locked host memory, and copies into it that nobody waits for. As on a stream, a copy takes the values that the
// device has when it is requested. It arrives when the host waits for the device or for an event recorded after it.
// Until then its destination holds NaN, so that a missing wait shows.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <cstdint>

namespace ghostshard::emulation {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* memory);

// from: the values, in host memory that nobody else writes. to: in pinned memory.
void copy_later(at::Tensor from, const at::Tensor& to);
int64_t copies_so_far();
// Completes those of the first `count` copies that have not arrived.
void finish_copies(int64_t count);

}  // namespace ghostshard::emulation
