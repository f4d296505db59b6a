// tests/support/ranks.h with models on the test's device.
#pragma once

#include "tests/support/device_mesh.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {

inline void run_there(const fsdp::MeshShape& shape, const std::function<void(fsdp::Mesh&)>& body) {
  run_ranks(shape.ranks(), body, {.shape = shape, .place = moved_there});
}

}  // namespace ghostshard::tests
