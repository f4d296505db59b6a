// Meshes whose models are on the test's device.
#pragma once

#include <memory>
#include <utility>

#include "fsdp/mesh.h"
#include "tests/support/device.h"
#include "tests/support/staged_mesh.h"

namespace ghostshard::tests {

inline std::unique_ptr<fsdp::Mesh> lone_mesh() { return fsdp::Mesh::single(test_device()); }

// A rank's mesh on the CPU, with models on the test's device; the mesh itself if that is the CPU. Several ranks share
// the one device, which NCCL refuses, so they meet in host memory.
inline std::unique_ptr<fsdp::Mesh> moved_there(std::unique_ptr<fsdp::Mesh> mesh) {
  return test_device().is_cpu() ? std::move(mesh) : staged_for_this_thread(std::move(mesh), test_device());
}

}  // namespace ghostshard::tests
