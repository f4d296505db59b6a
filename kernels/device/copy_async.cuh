// Copies from global to shared memory that nobody waits for where they are asked for (sm_80; PTX ISA, "cp.async").
// What a thread has asked for is there, for this thread, after it has waited; for others after a barrier more.
#pragma once

#include <cuda_runtime.h>

#include "kernels/device/vector.h"

namespace ghostshard::kernels::device {

// Writes kBytes: the first `present` of them from there, zeros after them. Both addresses are multiples of kBytes, also
// where nothing is present. The widest copy goes past L1, where nothing of a tile is read twice, and has the rest of
// its 128 bytes brought to L2: the next step's.
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

// What this thread has asked for since the last call becomes one group, also where it is nothing.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until of this thread's groups no more than the last kPending are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace ghostshard::kernels::device
