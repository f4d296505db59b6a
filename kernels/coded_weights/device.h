// The device's half of coded_weights.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/coded_weights/formula.h"
#include "kernels/device/types.h"

namespace ghostshard::kernels::device {

// Of n elements, with the same bits as on the host.
void encode_weights(WeightCode code, const float* weights, uint8_t* codes, float* scales, int64_t n, Stream stream);
// element: of the weights, kFloat32 or kBFloat16.
void decode_weights(WeightCode code, const uint8_t* codes, const float* scales, ElementType element, void* weights,
                    int64_t n, Stream stream);

}  // namespace ghostshard::kernels::device
