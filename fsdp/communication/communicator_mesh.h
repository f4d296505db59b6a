// A mesh that owns its communicators, one for each kind of traffic. Failures are neither announced nor heard unless a
// subclass does so.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

class CommunicatorMesh : public Mesh {
 public:
  Communicator& gather() override { return *gather_; }
  Communicator& reduce() override { return *reduce_; }
  Communicator& replicate() override { return *replicate_; }
  Communicator& model() override { return *model_; }
  Communicator& control() override { return *control_; }
  void announce_failure(const std::string&) noexcept override {}
  void watch_failures(std::function<void(const std::string&)>) override {}

 protected:
  using Mesh::Mesh;
  // Before the mesh is used a subclass makes all of them that it does not override.
  std::unique_ptr<Communicator> gather_, reduce_, replicate_, model_, control_;
};

}  // namespace ghostshard::fsdp
