// The part of CUDA that the kernels use, executed on the CPU. Programs that test device code without a device find this
// file instead of CUDA's own header. Names and meanings are CUDA's; the execution is in executor.h.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "tests/emulation/cuda/executor.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
  constexpr dim3() = default;
  constexpr explicit dim3(unsigned along_x, unsigned along_y = 1, unsigned along_z = 1)
      : x(along_x), y(along_y), z(along_z) {}
  unsigned x = 1, y = 1, z = 1;
};

// Of the running thread.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---------------------------------------------------------------------------------------------------------------------
// Device

inline void __syncthreads() { ghostshard::emulation::block_barrier(); }

inline void __syncwarp() {
  ghostshard::emulation::warp_collective("__syncwarp", nullptr, [](void* const(&)[ghostshard::emulation::kLanes]) {});
}

template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int distance) {
  if (lanes != 0xffffffffu) {
    throw ghostshard::emulation::Fault("__shfl_xor_sync: only whole warps are emulated");
  }
  struct Lane {
    T in, out;
    int distance;
  } mine{value, value, distance};
  ghostshard::emulation::warp_collective("__shfl_xor_sync", &mine,
                                         [](void* const(&all)[ghostshard::emulation::kLanes]) {
                                           for (int i = 0; i < ghostshard::emulation::kLanes; ++i) {
                                             Lane& lane = *static_cast<Lane*>(all[i]);
                                             lane.out = static_cast<Lane*>(all[i ^ lane.distance])->in;
                                           }
                                         });
  return mine.out;
}

// NOLINTEND(bugprone-reserved-identifier)

// ---------------------------------------------------------------------------------------------------------------------
// Host

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };
inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration argument"; }

struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cudaDeviceAttr { cudaDevAttrMaxGridDimX, cudaDevAttrMaxSharedMemoryPerBlockOptin };
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
// A device that takes few blocks, so that kernels have to loop.
constexpr int kEmulatedMostBlocks = 5;
// What a block may ask for: that of sm_80 and that of sm_86 in turn, so that kernels for both run.
constexpr size_t kEmulatedMostShared = size_t{163} * 1024, kEmulatedLeastShared = size_t{99} * 1024;
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  static std::atomic<unsigned> asked = 0;
  *value = attribute == cudaDevAttrMaxGridDimX
               ? kEmulatedMostBlocks
               : static_cast<int>(asked++ % 2 == 0 ? kEmulatedMostShared : kEmulatedLeastShared);
  return cudaSuccess;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
// By kernel, of the launches of this thread.
inline std::unordered_map<void*, size_t>& emulated_shared_bytes() {
  thread_local std::unordered_map<void*, size_t> asked;
  return asked;
}
template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kEmulatedMostShared) {
    return cudaErrorInvalidConfiguration;
  }
  emulated_shared_bytes()[reinterpret_cast<void*>(kernel)] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

// Runs at once. A block may have 48 KiB unless a kernel asks for more.
template <typename... Expected, typename... Actual>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...),
                               const Actual&... arguments) {
  const auto& asked = emulated_shared_bytes();
  const auto found = asked.find(reinterpret_cast<void*>(kernel));
  const size_t most_shared = found == asked.end() ? size_t{48} * 1024 : found->second;
  if (config->gridDim.x == 0 || config->gridDim.x > kEmulatedMostBlocks || config->blockDim.x == 0 ||
      config->blockDim.x > 1024 || config->dynamicSmemBytes > most_shared) {
    return cudaErrorInvalidConfiguration;
  }
  ghostshard::emulation::run({.blocks = config->gridDim.x,
                              .threads = static_cast<int>(config->blockDim.x),
                              .shared_bytes = config->dynamicSmemBytes},
                             [&] { kernel(static_cast<Expected>(arguments)...); });
  return cudaSuccess;
}
