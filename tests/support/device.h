// The device of a test's tensors, chosen by what its program is linked with: device_cpu.cpp, device_emulated.cpp
// (tests/emulation/device) or device_gpu.cpp. Slow twins, expected values and comparisons stay on the CPU.
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::tests {

at::Device test_device();

// x on the test's device; x itself if it is there already.
inline at::Tensor there(const at::Tensor& x) { return x.to(test_device()); }

}  // namespace ghostshard::tests
