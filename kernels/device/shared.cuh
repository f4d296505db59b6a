// A block's shared memory as one struct, one for each kernel; the launch gives its size.
#pragma once

#include <cuda_runtime.h>

namespace ghostshard::kernels::device {

template <typename Storage>
__device__ __forceinline__ Storage& block_shared() {
  extern __shared__ __align__(16) unsigned char ghostshard_shared_bytes[];
  return *reinterpret_cast<Storage*>(ghostshard_shared_bytes);
}

}  // namespace ghostshard::kernels::device
