// Every collective once, as a communicator begins. Internal to this folder.
#pragma once

#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

// In each type, on values whose results differ by rank and place. A collective over the communicator; throws
// std::runtime_error naming call and communicator where the values are wrong.
void self_test(Communicator& communicator, at::Device device, const std::string& name);

}  // namespace ghostshard::fsdp
