// The communicator of one rank: copies, no process group.
#pragma once

#include <memory>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

std::unique_ptr<Communicator> make_lone_communicator(at::Device device = at::kCPU);

}  // namespace ghostshard::fsdp
