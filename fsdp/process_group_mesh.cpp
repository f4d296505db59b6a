#include "fsdp/process_group_mesh.h"

#include <stdexcept>

#include "fsdp/communication/device_communicator.h"
#include "fsdp/communication/gloo_communicator.h"

namespace ghostshard::fsdp {
namespace {

std::unique_ptr<Communicator> over(const char* name, const std::string& group, int64_t place, int64_t size,
                                   at::Device on) {
  if (size == 1) return make_lone_communicator(on);
  auto communicator = on.is_cpu() ? adopt_gloo_communicator(name, group) : adopt_device_communicator(name, group, on);
  if (communicator->size() != size || communicator->rank() != place) {
    throw std::invalid_argument("communicator '" + std::string(name) + "': this must be rank " + std::to_string(place) +
                                " of " + std::to_string(size) + ", got a group where it is rank " +
                                std::to_string(communicator->rank()) + " of " + std::to_string(communicator->size()));
  }
  return communicator;
}

class ProcessGroupMesh final : public Mesh {
 public:
  ProcessGroupMesh(const MeshShape& mesh_shape, int64_t mesh_rank, const ProcessGroups& groups, at::Device on)
      : Mesh(mesh_rank, mesh_shape, on),
        control_(over("control", groups.control, mesh_rank, world_size(), at::kCPU)),
        reduce_(over("reduce", groups.reduce, shard_rank(), mesh_shape.shard, on)),
        replicate_(over("replicate", groups.replicate, replica(), mesh_shape.replicate, on)),
        model_(over("model", groups.model, model_rank(), mesh_shape.model, on)) {}

  Communicator& gather() override {
    throw std::logic_error("this mesh does not gather weights: they belong to somebody else");
  }
  Communicator& reduce() override { return *reduce_; }
  Communicator& replicate() override { return *replicate_; }
  Communicator& model() override { return *model_; }
  Communicator& control() override { return *control_; }
  void announce_failure(const std::string&) noexcept override {}
  void watch_failures(std::function<void(const std::string&)>) override {}

 private:
  std::unique_ptr<Communicator> control_, reduce_, replicate_, model_;
};

}  // namespace

std::unique_ptr<Mesh> mesh_over(const MeshShape& shape, int64_t rank, const ProcessGroups& groups, at::Device device) {
  if (!(shape.replicate >= 1 && shape.shard >= 1 && shape.model >= 1) || !(rank >= 0 && rank < shape.ranks())) {
    throw std::invalid_argument("the rank must be one of the mesh " + shape.text() + ", got " + std::to_string(rank));
  }
  return std::make_unique<ProcessGroupMesh>(shape, rank, groups, device);
}

}  // namespace ghostshard::fsdp
