// Codes of weights on the device: encoding has a block of threads for each stretch, decoding a thread for each element.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/coded_weights/formula.h"
#include "kernels/device/largest.cuh"
#include "kernels/device/shared.cuh"

namespace ghostshard::kernels::device {

template <WeightCode kCode>
__global__ void __launch_bounds__(kWeightStretch)
    encode_stretches(const float* weights, uint8_t* codes, float* scales, int64_t n) {
  auto& maxima = block_shared<WarpMaxima<kWeightStretch>>();
  const int64_t count = (n + kWeightStretch - 1) / kWeightStretch;
  for (int64_t s = blockIdx.x; s < count; s += gridDim.x) {
    const int64_t i = s * kWeightStretch + threadIdx.x;
    const float weight = i < n ? weights[i] : 0.0F;
    const int32_t most = warp_max(magnitude_bits(weight));
    __syncthreads();  // the last stretch's maxima have been read
    if (threadIdx.x % kWarp == 0) maxima.of_warp[threadIdx.x / kWarp] = most;
    __syncthreads();
    const float scale = scale_of_weights<kCode>(largest(maxima));
    if (i < n) codes[i] = encode_weight<kCode>(weight, scale);
    if (threadIdx.x == 0) scales[s] = scale;
  }
}

template <WeightCode kCode, typename T>
__global__ void __launch_bounds__(kWeightStretch)
    decode_elements(const uint8_t* codes, const float* scales, T* weights, int64_t n) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    store_weight(decode_weight<kCode>(codes[i], scales[i / kWeightStretch]), weights[i]);
  }
}

}  // namespace ghostshard::kernels::device
