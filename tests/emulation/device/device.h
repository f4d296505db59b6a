// An emulated device of ATen, for tests. It has memory of its own that the host cannot touch (memory.h), executes the
// kernels of kernels/*/launch.cu (tests/emulation/cuda), and does LibTorch's operations on the host over copies.
//
// As on CUDA, every operation on the device refuses tensors that are not on it, except numbers (no extents). LibTorch
// knows it as PrivateUse1, its place for devices of others; linking device.cpp registers it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::emulation {

at::Device device();

// The number of times that the host, in any thread, has waited for the device since the program began. A wait is
// counted if LibTorch's CUDA operations would wait: a copy to the host, except a non-blocking one into page-locked
// memory; a copy from the host, except a non-blocking one; an event; item(); an operation whose result's extents depend
// on values.
int64_t host_waits();
void count_wait();

}  // namespace ghostshard::emulation
