// Noise on the device: keystream, normals and addition in one pass over the buffer. Compiled without contraction, so
// the bits are the host's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/vector.h"
#include "kernels/gaussian/box_muller_pair.h"
#include "kernels/gaussian/chacha20_block.h"

namespace ghostshard::kernels::device {

constexpr int kGaussianThreads = 256;
constexpr uint64_t kBlockElements = 8;  // of one ChaCha20 block

struct GaussianRange {
  ChaChaKeyWords key;
  uint32_t parameter;
  uint64_t first;  // element of out[0]
  float scale;
  float* out;
  uint64_t count;
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
inline __global__ void __launch_bounds__(kGaussianThreads) gaussian(GaussianRange p) {
  const uint64_t first_block = p.first / kBlockElements;
  const uint64_t blocks = (p.first + (p.count - 1)) / kBlockElements - first_block + 1;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < blocks;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    uint32_t words[16];
    chacha20_block(p.key, p.parameter, first_block + i, words);
    float normals[kBlockElements];
    for (uint64_t pair = 0; pair < kBlockElements / 2; ++pair) {
      const NormalPair z = normal_pair(words + 4 * pair);
      normals[2 * pair] = z.cosine;
      normals[2 * pair + 1] = z.sine;
    }
    // The block's first element, counted from out[0]. It wraps below 0, and is then beyond count, if the first block
    // begins with elements that were not asked for.
    const uint64_t at = (first_block + i) * kBlockElements - p.first;
    if (at < p.count && p.count - at >= kBlockElements && is_aligned<kWidest>(p.out + at)) {
      add_vectors(p.out + at, p.scale, normals);
      continue;
    }
    for (uint64_t element = 0; element < kBlockElements; ++element) {
      if (at + element < p.count) p.out[at + element] += p.scale * normals[element];
    }
  }
}

}  // namespace ghostshard::kernels::device
