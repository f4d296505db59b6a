// Noise on the device: keystream, normals and addition in one pass over the buffer. Compiled without contraction, so
// the bits are the host's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/vector.h"
#include "kernels/gaussian/box_muller_pair.h"
#include "kernels/gaussian/chacha20_block.h"
#include "kernels/gaussian/device.h"

namespace ghostshard::kernels::device {

constexpr int kGaussianThreads = 256;
constexpr uint64_t kBlockElements = 8;  // of one ChaCha20 block

constexpr int kMostRanges = 64;  // of one launch, whose arguments may have 4 KiB

struct GaussianWork {
  ChaChaKeyWords key;
  float scale;
  int ranges;
  GaussianRange range[kMostRanges];
  int64_t end[kMostRanges];  // the blocks of threads for it and those before it
};

// For a whole block whose elements begin at a multiple of 16 bytes.
__device__ __forceinline__ void add_vectors(float* out, float scale, const float (&normals)[kBlockElements]) {
  constexpr int kWide = kWidest / static_cast<int>(sizeof(float));
  for (int first = 0; first < static_cast<int>(kBlockElements); first += kWide) {
    Vector<float>& to = vector_at<kWide>(out + first);
    Vector<float> sums = to;
    for (int i = 0; i < kWide; ++i) sums.value[i] += scale * normals[first + i];
    to = sums;
  }
}

// One thread computes one block of keystream: 64 bytes in registers, eight elements.
inline __device__ void add_block(const GaussianWork& work, const GaussianRange& to, uint64_t i) {
  const uint64_t first_block = to.first / kBlockElements;
  if (i > (to.first + (to.count - 1)) / kBlockElements - first_block) return;
  uint32_t words[16];
  chacha20_block(work.key, to.parameter, first_block + i, words);
  float normals[kBlockElements];
  for (uint64_t pair = 0; pair < kBlockElements / 2; ++pair) {
    const NormalPair z = normal_pair(words + 4 * pair);
    normals[2 * pair] = z.cosine;
    normals[2 * pair + 1] = z.sine;
  }
  // The block's first element, counted from out[0]. It wraps below 0, and is then beyond count, if the first block
  // begins with elements that were not asked for.
  const uint64_t at = (first_block + i) * kBlockElements - to.first;
  if (at < to.count && to.count - at >= kBlockElements && is_aligned<kWidest>(to.out + at)) {
    return add_vectors(to.out + at, work.scale, normals);
  }
  for (uint64_t element = 0; element < kBlockElements; ++element) {
    if (at + element < to.count) to.out[at + element] += work.scale * normals[element];
  }
}

inline __global__ void __launch_bounds__(kGaussianThreads) gaussian(GaussianWork work) {
  const int64_t blocks = work.end[work.ranges - 1];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    int number = 0;
    while (block >= work.end[number]) ++number;
    const int64_t of_range = block - (number == 0 ? 0 : work.end[number - 1]);
    add_block(work, work.range[number], static_cast<uint64_t>(of_range) * kGaussianThreads + threadIdx.x);
  }
}

}  // namespace ghostshard::kernels::device
