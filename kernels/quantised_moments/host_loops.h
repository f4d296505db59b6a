// The loops over stretches in host memory. Compiled without LibTorch, whose precompiled header has other flags.
#pragma once

#include <cstdint>

#include "kernels/quantised_moments/formula.h"

namespace ghostshard::kernels {

// One stretch: n <= 256 elements.
void adamw_stretch(const AdamWTerms& terms, CodeSign second_sign, float* weights, const float* gradient, uint8_t* first,
                   float* first_scale, uint8_t* second, float* second_scale, int64_t n);
// Any number of elements.
void adamw_elements(const AdamWTerms& terms, float* weights, const float* gradient, float* first, float* second,
                    int64_t n);

// Any number of elements; `first_element` is the position of the first among its parameter's.
void adamw_halves(const AdamWTerms& terms, float* weights, const float* gradient, uint16_t* first, uint16_t* second,
                  uint32_t stream, uint64_t first_element, int64_t n);

// One stretch.
void encode_stretch(const float* values, CodeSign sign, uint8_t* codes, float* scale, int64_t n);
void decode_stretch(const uint8_t* codes, float scale, CodeSign sign, float* values, int64_t n);

}  // namespace ghostshard::kernels
