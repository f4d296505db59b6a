// An emulated device of LibTorch, for tests: it has memory of its own that the host cannot touch (memory.h),
// tests/emulation/cuda executes the kernels of kernels/*/launch.cu, and the host does LibTorch's operations on copies.
//
// As on CUDA, every operation on the device refuses tensors that are not on it, except numbers (tensors without
// extents). It is registered as PrivateUse1, LibTorch's name for devices it does not know; linking device.cpp registers
// it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::emulation {

at::Device device();

// How often the host has waited for the device since the program began, in all threads. It counts the waits of
// LibTorch's CUDA operations: at copies to the host (except non-blocking ones into page-locked memory), events, item(),
// copies from the host (except non-blocking ones), and operations whose result's extents depend on values.
int64_t host_waits();
void count_wait();

}  // namespace ghostshard::emulation
