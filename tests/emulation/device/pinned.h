// Page-locked host memory, and copies into it that nobody waits for: they take what the device has when they are asked
// for, as a stream does, and arrive when an event recorded after them, or the device, is waited for. Until then what is
// there is NaN, so that a missing wait shows.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <cstdint>

namespace ghostshard::emulation {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* memory);

// from: its values, on the host and its own. to: in pinned memory.
void copy_later(at::Tensor from, const at::Tensor& to);
int64_t copies_so_far();
// The first `count` copies arrive, those that have not yet.
void finish_copies(int64_t count);

}  // namespace ghostshard::emulation
