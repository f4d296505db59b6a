// A device of ATen that is emulated, for tests: memory of its own that the host cannot touch (memory.h), the kernels of
// kernels/*.cu executed by tests/emulation/cuda, and LibTorch's operations done on the host over copies.
//
// Tensors that are not on the device are refused by every operation on it, but for numbers (no extents), as on CUDA.
// It takes the place that LibTorch has for devices it does not know (PrivateUse1); linking this file registers it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::emulation {

at::Device device();

// How often the host has waited for the device since the program began, as LibTorch's CUDA operations would make it:
// copies to the host (but those into page-locked memory that are asked not to block), events, item(), copies from the
// host but those that are asked not to block, and operations whose result's extents depend on values. By all threads.
int64_t host_waits();
void count_wait();

}  // namespace ghostshard::emulation
