// tests/support/ranks.h with models where the test's are.
#pragma once

#include "tests/support/device.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {

inline void run_there(const fsdp::MeshShape& shape, const std::function<void(fsdp::Mesh&)>& body) {
  run_ranks(shape.ranks(), body, {.shape = shape, .place = moved_there});
}

}  // namespace ghostshard::tests
