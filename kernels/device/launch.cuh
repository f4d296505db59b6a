// Launches of kernels and their errors: every launch names its stream, and every launch is checked.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + what + " failed: " + cudaGetErrorString(error));
  }
}

// A one-dimensional grid for `work` blocks of work. A device may take fewer blocks: every kernel here loops from
// blockIdx.x in steps of gridDim.x, in 64 bits.
struct Grid {
  int64_t work;
  int threads;
  size_t shared_bytes = 0;
};

constexpr size_t kSharedUnasked = size_t{48} * 1024;  // that a block may have of itself; more is asked for

// Does nothing if there is no work. Does not wait: a later call reports a failure of the running kernel. Throws
// std::runtime_error if the launch fails.
template <typename... P>
void launch(const char* name, void (*kernel)(P...), const Grid& grid, Stream stream,
            const std::type_identity_t<P>&... arguments) {
  if (grid.work <= 0) {
    return;
  }
  int device = 0, most_blocks = 0;
  check(cudaGetDevice(&device), name);
  check(cudaDeviceGetAttribute(&most_blocks, cudaDevAttrMaxGridDimX, device), name);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min<int64_t>(grid.work, most_blocks)));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  if (grid.shared_bytes > kSharedUnasked) {
    check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared_bytes)),
        name);
  }
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

// That a block may ask for on this device: 99 KiB (sm_86, sm_89, sm_120) to 227 KiB (sm_90, sm_100).
inline size_t most_shared_bytes() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<size_t>(bytes);
}

// The blocks of work if each thread takes one element.
inline int64_t blocks_of(int64_t elements, int threads) { return (elements + threads - 1) / threads; }

}  // namespace ghostshard::kernels::device
