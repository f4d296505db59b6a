// Codes of weights: the launches of the kernels in kernels.cuh.
#include "kernels/coded_weights/device.h"
#include "kernels/coded_weights/kernels.cuh"
#include "kernels/device/launch.cuh"

namespace ghostshard::kernels::device {

// NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes codes and scales
void encode_weights(WeightCode code, const float* weights, uint8_t* codes, float* scales, int64_t n, Stream stream) {
  launch("encode_stretches",
         code == WeightCode::kInt8 ? encode_stretches<WeightCode::kInt8> : encode_stretches<WeightCode::kFloat8>,
         {.work = blocks_of(n, kWeightStretch),
          .threads = kWeightStretch,
          .shared_bytes = sizeof(WarpMaxima<kWeightStretch>)},
         stream, weights, codes, scales, n);
}

template <typename T>
static void decode_as(WeightCode code, const uint8_t* codes, const float* scales, void* weights, int64_t n,
                      Stream stream) {
  launch("decode_elements",
         code == WeightCode::kInt8 ? decode_elements<WeightCode::kInt8, T> : decode_elements<WeightCode::kFloat8, T>,
         {.work = blocks_of(n, kWeightStretch), .threads = kWeightStretch}, stream, codes, scales,
         static_cast<T*>(weights), n);
}

void decode_weights(WeightCode code, const uint8_t* codes, const float* scales, ElementType element, void* weights,
                    int64_t n, Stream stream) {
  element == ElementType::kFloat32 ? decode_as<float>(code, codes, scales, weights, n, stream)
                                   : decode_as<uint16_t>(code, codes, scales, weights, n, stream);
}

}  // namespace ghostshard::kernels::device
