// Tries every collective once, when a communicator begins.
#pragma once

#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

// For each type a communicator takes, on values whose results differ by rank and place. A collective over the
// communicator. Throws std::runtime_error naming call and communicator if a result is wrong.
void probe_collectives(Communicator& communicator, at::Device device, const std::string& name);

}  // namespace ghostshard::fsdp
