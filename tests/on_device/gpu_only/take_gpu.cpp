// Begins the program as one on a GPU begins: on that device, with LibTorch's operations whose results repeat.
#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>

#include "fsdp/communication/device_backend.h"
#include "tests/support/device.h"

namespace ghostshard::tests {
namespace {

class TakesDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (at::cuda::device_count() > 0) fsdp::take_device(test_device());
  }
};

[[maybe_unused]] const testing::Environment* const kTakesDevice =
    testing::AddGlobalTestEnvironment(new TakesDevice);  // GoogleTest owns it

}  // namespace
}  // namespace ghostshard::tests
