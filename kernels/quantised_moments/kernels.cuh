// AdamW on the device: one block of threads for each stretch, one thread for each element. Compiled without
// contraction, so the bits are the host's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/largest.cuh"
#include "kernels/device/shared.cuh"
#include "kernels/quantised_moments/device.h"
#include "kernels/quantised_moments/formula.h"

namespace ghostshard::kernels::device {

struct StretchMaxima {
  WarpMaxima<kStretch> first, second;
};

struct CodedStep {
  AdamWTerms terms;
  float* weights;
  const float* gradient;
  CodedMoments moments;
  int64_t n;
};

template <CodeSign kSecond>
__global__ void __launch_bounds__(kStretch) adamw_of_stretches(CodedStep p) {
  StretchMaxima& shared = block_shared<StretchMaxima>();
  const int64_t count = (p.n + kStretch - 1) / kStretch;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t s = blockIdx.x; s < count; s += gridDim.x) {
    const int64_t i = s * kStretch + threadIdx.x;
    const bool mine = i < p.n;
    float first = 0, second = 0;
    if (mine) {
      first = decode_moment<CodeSign::kSigned>(p.moments.first[i]) * p.moments.first_scale[s];
      second = decode_moment<kSecond>(p.moments.second[i]) * p.moments.second_scale[s];
      float weight = p.weights[i];
      adamw_element(p.terms, p.gradient[i], weight, first, second);
      p.weights[i] = weight;
    }
    const int32_t first_most = warp_max(magnitude_bits(first)), second_most = warp_max(magnitude_bits(second));
    __syncthreads();  // the last stretch's maxima, and the scales above, have been read
    if (threadIdx.x % kWarp == 0) {
      shared.first.of_warp[warp] = first_most;
      shared.second.of_warp[warp] = second_most;
    }
    __syncthreads();
    const float first_scale = largest(shared.first), second_scale = largest(shared.second);
    if (mine) {
      p.moments.first[i] = encode_moment<CodeSign::kSigned>(first, first_scale);
      p.moments.second[i] = encode_moment<kSecond>(second, second_scale);
    }
    if (threadIdx.x == 0) {
      p.moments.first_scale[s] = first_scale;
      p.moments.second_scale[s] = second_scale;
    }
  }
}

inline __global__ void __launch_bounds__(kStretch)
    adamw_of_elements(AdamWTerms terms, float* weights, const float* gradient, float* first, float* second, int64_t n) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    adamw_element(terms, gradient[i], weights[i], first[i], second[i]);
  }
}

inline __global__ void __launch_bounds__(kStretch)
    adamw_of_halves(AdamWTerms terms, float* weights, const float* gradient, uint16_t* first, uint16_t* second,
                    uint32_t stream_of_bits, uint64_t first_element, int64_t n) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    adamw_element_of_halves(terms, gradient[i], weights[i], first[i], second[i],
                            rounding_bits(stream_of_bits, first_element + static_cast<uint64_t>(i)));
  }
}

}  // namespace ghostshard::kernels::device
