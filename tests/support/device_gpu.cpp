// The first CUDA device. On a machine without one the program says so and runs no test.
#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/device.h"

namespace ghostshard::tests {
namespace {

class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (at::cuda::device_count() == 0) {
      // Skipping the tests one by one would end in "PASSED".
      std::puts("no CUDA device: the tests on a device were not run");
      std::fflush(stdout);
      std::_Exit(77);
    }
  }
};

[[maybe_unused]] const testing::Environment* const kNeedsDevice =
    testing::AddGlobalTestEnvironment(new NeedsDevice);  // GoogleTest owns it

}  // namespace

at::Device test_device() { return {at::kCUDA, 0}; }

}  // namespace ghostshard::tests
