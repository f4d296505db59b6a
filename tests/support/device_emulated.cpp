#include "tests/emulation/device/device.h"
#include "tests/support/device.h"
#include "tests/support/staged_mesh.h"

namespace ghostshard::tests {

at::Device test_device() { return emulation::device(); }
std::unique_ptr<fsdp::Mesh> moved_there(std::unique_ptr<fsdp::Mesh> mesh) {
  return staged_for_this_thread(std::move(mesh), test_device());
}

}  // namespace ghostshard::tests
