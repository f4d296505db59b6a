#include "fsdp/process_group_mesh.h"

#include <stdexcept>

#include "fsdp/communication/communicator_mesh.h"
#include "fsdp/communication/device_communicator.h"
#include "fsdp/communication/gloo_communicator.h"
#include "fsdp/communication/lone_communicator.h"

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

class ProcessGroupMesh final : public CommunicatorMesh {
 public:
  ProcessGroupMesh(const MeshShape& shape, int64_t rank, const ProcessGroups& groups, at::Device on)
      : CommunicatorMesh(rank, shape, on) {
    control_ = over("control", groups.control, rank, world_size(), at::kCPU);
    reduce_ = over("reduce", groups.reduce, shard_rank(), shape.shard, on);
    replicate_ = over("replicate", groups.replicate, replica(), shape.replicate, on);
    model_ = over("model", groups.model, model_rank(), shape.model, on);
  }

  Communicator& gather() override {
    throw std::logic_error("this mesh does not gather weights: they belong to somebody else");
  }
};

}  // namespace

std::unique_ptr<Mesh> mesh_over(const MeshShape& shape, int64_t rank, const ProcessGroups& groups, at::Device device) {
  if (!(shape.replicate >= 1 && shape.shard >= 1 && shape.model >= 1) || !(rank >= 0 && rank < shape.ranks())) {
    throw std::invalid_argument("the rank must be one of the mesh " + shape.text() + ", got " + std::to_string(rank));
  }
  return std::make_unique<ProcessGroupMesh>(shape, rank, groups, device);
}

}  // namespace ghostshard::fsdp
