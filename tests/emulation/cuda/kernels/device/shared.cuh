// Replaces kernels/device/shared.cuh: the executor gives the block its shared memory.
#pragma once

#include "tests/emulation/cuda/executor.h"

namespace ghostshard::kernels::device {

template <typename Storage>
Storage& block_shared() {
  return *static_cast<Storage*>(emulation::shared_memory(sizeof(Storage)));
}

}  // namespace ghostshard::kernels::device
