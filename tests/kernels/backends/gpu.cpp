// Tensors on the first CUDA device. Where there is none every test is skipped, and says so.
#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/kernels/backends/backend.h"

namespace ghostshard::kernels::backend {
namespace {

class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (at::cuda::device_count() == 0) {
      std::puts("no CUDA device: the tests of device code on a device are skipped");
      GTEST_SKIP() << "no CUDA device";
    }
  }
};

[[maybe_unused]] const testing::Environment* const kNeedsDevice =
    testing::AddGlobalTestEnvironment(new NeedsDevice);  // GoogleTest owns it

}  // namespace

at::Device device() { return {at::kCUDA, 0}; }

}  // namespace ghostshard::kernels::backend
