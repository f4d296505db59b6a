// Fingerprints on the device. Each word is mixed with its place by a bijection, and all mixed words are added modulo
// 2^64: the order of the threads does not matter, and a single changed word cannot vanish.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/shared.cuh"
#include "kernels/device/tiles.h"

namespace ghostshard::kernels::device {

constexpr int kFingerprintThreads = 256;
constexpr int64_t kFingerprintChunkBytes = int64_t{1} << 16;

struct FingerprintSums {
  uint64_t of_thread[kFingerprintThreads];
};

// The finaliser of SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014).
__device__ __forceinline__ uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The sum over all threads of the block; thread 0 gets it.
inline __device__ uint64_t block_total(FingerprintSums& shared, uint64_t sum) {
  __syncthreads();  // the last sums have been read
  shared.of_thread[threadIdx.x] = sum;
  __syncthreads();
  uint64_t total = 0;
  if (threadIdx.x == 0) {
    for (const uint64_t part : shared.of_thread) total += part;
  }
  return total;
}

inline __global__ void sum_chunks(const unsigned char* data, int64_t bytes, uint64_t tensor, uint64_t* sums) {
  auto& shared = block_shared<FingerprintSums>();
  const int64_t chunks = ceil_div(bytes, kFingerprintChunkBytes);
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t end = (chunk + 1) * kFingerprintChunkBytes < bytes ? (chunk + 1) * kFingerprintChunkBytes : bytes;
    uint64_t sum = 0;
    for (int64_t at = chunk * kFingerprintChunkBytes + int64_t{8} * threadIdx.x; at < end;
         at += int64_t{8} * kFingerprintThreads) {
      // Byte by byte at the end, and if the tensor begins within a word.
      uint64_t word = 0;
      if (at + 8 <= end && reinterpret_cast<uintptr_t>(data + at) % 8 == 0) {
        word = *reinterpret_cast<const uint64_t*>(data + at);
      } else {
        for (int64_t i = 0; i < 8 && at + i < end; ++i) word |= static_cast<uint64_t>(data[at + i]) << (8 * i);
      }
      sum += mixed(word ^ mixed((static_cast<uint64_t>(at) + tensor) ^ 0x6a09e667f3bcc909u));
    }
    sum = block_total(shared, sum);
    if (threadIdx.x == 0) {
      sums[chunk] = sum;
    }
  }
}

inline __global__ void join_chunks(const uint64_t* sums, int64_t count, uint64_t* whole) {
  auto& shared = block_shared<FingerprintSums>();
  uint64_t sum = 0;
  for (int64_t k = threadIdx.x; k < count; k += kFingerprintThreads) sum += sums[k];
  sum = block_total(shared, sum);
  if (threadIdx.x == 0) {
    *whole = sum;
  }
}

}  // namespace ghostshard::kernels::device
