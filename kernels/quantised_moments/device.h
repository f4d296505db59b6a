// The device's half of quantised_moments.h: pointers in, launches out. Rules as in kernels/linear_norm/device.h.
#pragma once

#include "kernels/device/types.h"
#include "kernels/quantised_moments/formula.h"

namespace ghostshard::kernels::device {

// Of n elements, as MomentCodes.
struct CodedMoments {
  uint8_t* first;
  float* first_scale;
  uint8_t* second;
  float* second_scale;
};

// With the same bits as on the host.
void adamw_coded(const AdamWTerms& terms, CodeSign second_sign, float* weights, const float* gradient,
                 const CodedMoments& moments, int64_t n, Stream stream);
void adamw_halves(const AdamWTerms& terms, float* weights, const float* gradient, uint16_t* first, uint16_t* second,
                  uint32_t stream_of_bits, uint64_t first_element, int64_t n, Stream stream);
void adamw_plain(const AdamWTerms& terms, float* weights, const float* gradient, float* first, float* second, int64_t n,
                 Stream stream);

}  // namespace ghostshard::kernels::device
