// A mesh whose models are on a device, over one whose communicators move host memory: every collective copies its
// tensors to the host and back. For tests of several ranks that share a device.
#pragma once

#include <memory>

#include "fsdp/communication/communicator_mesh.h"

namespace ghostshard::tests {

class StagedMesh final : public fsdp::CommunicatorMesh {
 public:
  StagedMesh(std::unique_ptr<fsdp::Mesh> below, at::Device device);

  fsdp::Communicator& control() override { return below_->control(); }
  void announce_failure(const std::string& message) noexcept override { below_->announce_failure(message); }
  void watch_failures(std::function<void(const std::string&)> on_failure) override {
    below_->watch_failures(std::move(on_failure));
  }

 private:
  std::unique_ptr<fsdp::Mesh> below_;
};

// For a rank that is a thread, called on that thread: stages its mesh and runs its backward passes on the thread
// itself. Autograd has one thread for each device; a rank whose backward waited there for another rank's would wait for
// ever.
std::unique_ptr<fsdp::Mesh> staged_for_this_thread(std::unique_ptr<fsdp::Mesh> below, at::Device device);

}  // namespace ghostshard::tests
