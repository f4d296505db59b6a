// The loops over a stretch in host memory. Compiled without LibTorch, whose precompiled header has other flags.
#pragma once

#include <cstdint>

#include "kernels/coded_weights/formula.h"

namespace ghostshard::kernels {

// One stretch: n <= 256 elements. uint16_t: bfloat16.
void encode_weight_stretch(const float* weights, WeightCode code, uint8_t* codes, float* scale, int64_t n);
void decode_weight_stretch(const uint8_t* codes, float scale, WeightCode code, float* weights, int64_t n);
void decode_weight_stretch(const uint8_t* codes, float scale, WeightCode code, uint16_t* weights, int64_t n);

}  // namespace ghostshard::kernels
