// In the place of kernels/device/shared.cuh: the block's shared memory comes from the executor.
#pragma once

#include "tests/emulation/cuda/executor.h"

namespace ghostshard::kernels::device {

template <typename Storage>
Storage& block_shared() {
  return *static_cast<Storage*>(emulation::shared_memory(sizeof(Storage)));
}

}  // namespace ghostshard::kernels::device
