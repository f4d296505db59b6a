// Page-locked host memory, and asynchronous copies into it. Like a stream, a copy takes the device's values of the
// moment when it is queued, and arrives when the host waits for an event recorded after it, or for the device. Until
// then its destination holds NaN, so that a missing wait shows.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <cstdint>

namespace ghostshard::emulation {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* memory);

// from: a copy of the values, on the host. to: in pinned memory.
void copy_later(at::Tensor from, const at::Tensor& to);
int64_t copies_so_far();
// Completes those of the first `count` copies that have not arrived yet.
void finish_copies(int64_t count);

}  // namespace ghostshard::emulation
