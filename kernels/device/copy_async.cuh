// Asynchronous copies from global to shared memory (sm_80; PTX ISA, "cp.async"). A thread sees the copies it started
// after it has waited for them; other threads see them after a barrier that follows.
#pragma once

#include <cuda_runtime.h>

#include "kernels/device/vector.h"

namespace ghostshard::kernels::device {

// Writes kBytes: the first `present` bytes from `global`, then zeros. Both addresses must be multiples of kBytes, even
// if `present` is 0. The widest copy bypasses L1, because no part of a tile is read twice, and brings the rest of its
// 128 bytes, which the next step needs, to L2.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int present) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == kWidest);
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == kWidest) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(present)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(kBytes), "r"(present)
                 : "memory");
  }
}

// The copies that this thread started since the last call become one group, even if there are none.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all groups of this thread but the last kPending are complete.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace ghostshard::kernels::device
