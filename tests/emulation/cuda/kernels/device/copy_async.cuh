// Replaces kernels/device/copy_async.cuh: every copy is made as late as it may be. Its destination holds NaN from the
// call until the wait that guarantees the copy.
#pragma once

#include <cstdint>

#include "kernels/device/vector.h"
#include "tests/emulation/cuda/executor.h"

namespace ghostshard::kernels::device {

template <int kBytes>
void copy_async(void* shared, const void* global, int present) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == kWidest);
  if (!is_aligned<kBytes>(shared) || !is_aligned<kBytes>(global)) {
    throw emulation::Fault("cp.async: an address that is not a multiple of the copy's size");
  }
  if (present < 0 || present > kBytes) {
    throw emulation::Fault("cp.async: more is there than is copied");
  }
  emulation::copy_later({.to = shared, .from = global, .present = present, .bytes = kBytes});
}

inline void commit_copies() { emulation::commit_copies(); }

template <int kPending>
void wait_for_copies() {
  emulation::wait_for_copies(kPending);
}

}  // namespace ghostshard::kernels::device
