// Fingerprints on the device. Each word is mixed with its place by a bijection, and all are added up modulo 2^64: no
// order of the threads matters, and a single changed word cannot vanish.
#include <cstdint>

#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/shared.cuh"
#include "kernels/device/tiles.h"
#include "kernels/fingerprint/device.h"

namespace ghostshard::kernels::device {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunkBytes = int64_t{1} << 16;

struct Sums {
  uint64_t of_thread[kThreads];
};

// The finaliser of SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014).
__device__ __forceinline__ uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Of all threads of the block; thread 0 gets it.
__device__ uint64_t block_total(Sums& shared, uint64_t sum) {
  __syncthreads();  // what was there has been read
  shared.of_thread[threadIdx.x] = sum;
  __syncthreads();
  uint64_t total = 0;
  if (threadIdx.x == 0) {
    for (const uint64_t part : shared.of_thread) total += part;
  }
  return total;
}

__global__ void sum_chunks(const unsigned char* data, int64_t bytes, uint64_t tensor, uint64_t* sums) {
  auto& shared = block_shared<Sums>();
  const int64_t chunks = ceil_div(bytes, kChunkBytes);
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t end = (chunk + 1) * kChunkBytes < bytes ? (chunk + 1) * kChunkBytes : bytes;
    uint64_t sum = 0;
    for (int64_t at = chunk * kChunkBytes + int64_t{8} * threadIdx.x; at < end; at += int64_t{8} * kThreads) {
      // Byte by byte at the end, and where the tensor begins within a word.
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

__global__ void join_chunks(const uint64_t* sums, int64_t count, uint64_t* whole) {
  auto& shared = block_shared<Sums>();
  uint64_t sum = 0;
  for (int64_t k = threadIdx.x; k < count; k += kThreads) sum += sums[k];
  sum = block_total(shared, sum);
  if (threadIdx.x == 0) {
    *whole = sum;
  }
}

}  // namespace

int64_t fingerprint_chunks(int64_t bytes) { return ceil_div(bytes, kChunkBytes); }

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes sums
void fingerprint_chunks_of(const void* data, int64_t bytes, uint64_t tensor, uint64_t* sums, Stream stream) {
  launch("sum_chunks", sum_chunks,
         {.work = fingerprint_chunks(bytes), .threads = kThreads, .shared_bytes = sizeof(Sums)}, stream,
         static_cast<const unsigned char*>(data), bytes, tensor, sums);
}

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes whole
void fingerprint_join(const uint64_t* sums, int64_t count, uint64_t* whole, Stream stream) {
  launch("join_chunks", join_chunks, {.work = 1, .threads = kThreads, .shared_bytes = sizeof(Sums)}, stream, sums,
         count, whole);
}

}  // namespace ghostshard::kernels::device
