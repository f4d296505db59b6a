// A mesh over process groups that torch.distributed made, for programs that already have theirs (the Python path).
#pragma once

#include <memory>
#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

// Names under which torch.distributed registered the groups (ProcessGroup.group_name). Each group is for this mesh
// alone: other transfers on it would be mixed up with the mesh's own. A name is empty if its axis has one rank.
struct ProcessGroups {
  std::string reduce;     // the ranks of this rank's line along the shard axis, in order
  std::string replicate;  // along the replicate axis
  std::string model;      // along the model axis
  std::string control;    // all ranks of the mesh
};

// device: of the models. The group `control` must have Gloo for the CPU on any device. The other groups must have Gloo
// if the device is the CPU, else the device's own backend.
//
// gather() throws std::logic_error, because the owner of the weights gathers them. Failures are not announced: a rank
// that ends closes its connections, and that ends the others. Throws std::invalid_argument if a group's size or this
// rank's place in it is not the mesh's. A collective over all ranks of the mesh.
std::unique_ptr<Mesh> mesh_over(const MeshShape& shape, int64_t rank, const ProcessGroups& groups,
                                at::Device device = at::kCPU);

}  // namespace ghostshard::fsdp
