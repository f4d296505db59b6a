// The first CUDA device, for all ranks of a test. Where there is none nothing is run, and the program says so.
#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "fsdp/communication/device_backend.h"
#include "tests/support/device.h"
#include "tests/support/staged_mesh.h"

namespace ghostshard::tests {
namespace {

class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (at::cuda::device_count() == 0) {
      // Skipping the tests one by one would end in "PASSED".
      std::puts("no CUDA device: the tests of the engine on a device were not run");
      std::fflush(stdout);
      std::_Exit(77);
    }
    fsdp::take_device(test_device());
  }
};

[[maybe_unused]] const testing::Environment* const kNeedsDevice =
    testing::AddGlobalTestEnvironment(new NeedsDevice);  // GoogleTest owns it

}  // namespace

at::Device test_device() { return {at::kCUDA, 0}; }
// NCCL refuses two ranks on one device, so they meet in host memory.
std::unique_ptr<fsdp::Mesh> moved_there(std::unique_ptr<fsdp::Mesh> mesh) {
  return staged_for_this_thread(std::move(mesh), test_device());
}

}  // namespace ghostshard::tests
