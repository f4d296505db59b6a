// Weights in one byte each, as ranks send them to each other: 256 consecutive elements are a *stretch* and share a
// scale in float32, so an element takes 1 + 4/256 = 1.016 bytes, where bfloat16 takes 2. (Scales for blocks of a
// quantised tensor: arXiv:2110.02861, section 2; the eight-bit float: arXiv:2209.05433, E4M3.)
//
//   kInt8    scale s = M/127, M the stretch's largest magnitude; code = the whole number nearest to w/s (halves to
//            even), value = code·s. Off by at most s/2, which is 0.0040·M. For weights that are of one size.
//   kFloat8  scale s = M/448; code = the nearest of 8 bits with a sign, 4 of exponent and 3 of fraction. Off by at most
//            2^-4 of the value, and by s·2^-10 below s·2^-6. For stretches with a few large weights.
//
// (Both but for the rounding of scale, quotient and product, 2^-22 of M; for M of at least 1e-35, below which the scale
// loses digits.) Zero is a code. A stretch with an element that is not finite comes back with no finite one.
//
// Every element is computed by itself, a quotient or a product at a time: the same bits on every device, and for every
// cut of the elements that cuts no stretch.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/coded_weights/formula.h"

namespace ghostshard::kernels {

inline constexpr int64_t weight_stretches(int64_t elements) { return (elements + kWeightStretch - 1) / kWeightStretch; }

// weights float32 [n], codes uint8 [n], scales float32 [weight_stretches(n)], contiguous and on one device; element 0
// begins a stretch. decode_weights also takes weights of bfloat16, rounded to the nearest, halves to even. They throw
// std::invalid_argument with the rule and the value.
void encode_weights(const at::Tensor& weights, WeightCode code, const at::Tensor& codes, const at::Tensor& scales);
void decode_weights(const at::Tensor& codes, const at::Tensor& scales, WeightCode code, const at::Tensor& weights);

}  // namespace ghostshard::kernels
