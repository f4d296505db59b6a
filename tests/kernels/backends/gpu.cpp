// Tensors on the first CUDA device. Where there is none nothing is run, and the program says so.
#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/kernels/backends/backend.h"

namespace ghostshard::kernels::backend {
namespace {

class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (at::cuda::device_count() == 0) {
      // Skipping the tests one by one would end in "PASSED".
      std::puts("no CUDA device: the tests of device code on a device were not run");
      std::fflush(stdout);
      std::_Exit(77);
    }
  }
};

[[maybe_unused]] const testing::Environment* const kNeedsDevice =
    testing::AddGlobalTestEnvironment(new NeedsDevice);  // GoogleTest owns it

}  // namespace

at::Device device() { return {at::kCUDA, 0}; }

}  // namespace ghostshard::kernels::backend
