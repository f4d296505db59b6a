// Noise on the device: keystream, normals and addition in one pass over the buffer. Compiled without contraction, so
// that it gives the host's bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/box_muller_pair.h"
#include "kernels/chacha20_block.h"

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

// One thread to a block of keystream: 64 bytes in registers, eight elements.
inline __global__ void __launch_bounds__(kGaussianThreads) gaussian(GaussianRange p) {
  const uint64_t first_block = p.first / kBlockElements;
  const uint64_t blocks = (p.first + (p.count - 1)) / kBlockElements - first_block + 1;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < blocks;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    uint32_t words[16];
    chacha20_block(p.key, p.parameter, first_block + i, words);
    // Of out[0]; below 0, that is, beyond count, for elements of the first block that were not asked for.
    const uint64_t at = (first_block + i) * kBlockElements - p.first;
    for (uint64_t pair = 0; pair < kBlockElements / 2; ++pair) {
      const NormalPair z = normal_pair(words + 4 * pair);
      const uint64_t even = at + 2 * pair, odd = even + 1;
      if (even < p.count) p.out[even] += p.scale * z.cosine;
      if (odd < p.count) p.out[odd] += p.scale * z.sine;
    }
  }
}

}  // namespace ghostshard::kernels::device
