// AdamW (arXiv:1711.05101) whose moments are stored in eight bits: decode, update and encode in one pass, so that
// float32 moments exist only for the elements under way. The idea is that of 8-bit optimizers (arXiv:2110.02861,
// sections 2 and 3): a few hundred consecutive elements share a scale, and codes are dense where small values need
// them.
//
// 256 consecutive elements are a *stretch*. A stretch stores its largest magnitude in float32 (the scale) and a byte
// for each element: 2·(1 + 4/256) = 2.03 bytes an element for both moments, where float32 takes 8. A byte stands for a
// sign and a magnitude relative to the scale, on a grid of decades: half of all codes lie in (0.1, 1], a quarter in
// (0.01, 0.1], and so on, evenly within each. Zero and one are codes, so a stretch that is decoded and encoded again
// comes to the same bytes.
//
// Error. With L bits for the magnitude (7 beside a sign, 8 without one) the decade (10^-(k+1), 10^-k] has 2^(L-1-k)
// codes, for k < L-1. A value in it is off by at most half their distance,
//
//   0.45·10^-k / 2^(L-1-k) · scale:   0.0070·scale in the top decade with a sign, 0.0035·scale without one,
//
// and by at most 0.5·10^-(L-1)·scale below the lowest decade.
//
// Known error variance. Often every element of the gradient is off by an independent error of known variance F, large
// against the true values. The second moment then is F and a little more, and its code has no room for the little: in a
// stretch whose largest value is 1.1·F half a code step is 0.0039·F, but the rule moves a moment by about
// (1−beta2)·sqrt(2)·F = 0.0014·F a step (beta2 = 0.999). Rounding takes that back every time, and the moment stands
// still. So what is stored is the excess over the known part, with a sign:
//
//   d_t = v_t − (1−beta2^t)·F,   d_t = beta2·d_(t−1) + (1−beta2)·(g²−F),   d_0 = 0.
//
// Its spread is sqrt(2)·F·sqrt((1−beta2)/(1+beta2)) = 0.032·F, the largest of 256 is about three times that, and half a
// code step 0.0070·0.1·F = 0.0007·F: less than a step of the rule. (Errors alone, 3,000 steps: the moment is off by
// 0.018·F as an excess and by 0.050·F as it is, where its spread is 0.032·F.) The corrected moment is d_t/(1−beta2^t) +
// F, so the bias correction of the known part is exact and never stored. The corrected moment is kept above a floor: a
// code's error is relative to a scale that another element may set, and could make the moment zero or negative.
//
// Every element is computed by itself in float32 without fused operations: the same bits on every device and for every
// cut of the elements that cuts no stretch.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/quantised_moments/formula.h"

namespace ghostshard::kernels {

inline constexpr int64_t stretches(int64_t elements) { return (elements + kStretch - 1) / kStretch; }

struct AdamWStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;             // this one, from 1
  double error_variance = 0.0;  // F above
  double floor = 1.0 / 64;      // of the corrected second moment, relative to F
  bool subtract = false;        // takes F out of the corrected second moment, d_t/(1−beta2^t), above the floor
};
// Throws std::invalid_argument unless learning_rate > 0, 0 <= beta < 1 (both), epsilon > 0, weight_decay >= 0, step >=
// 1, error_variance >= 0, floor >= 0, all finite, and floor > 0 if F is subtracted.
AdamWTerms adamw_terms(const AdamWStep& step);

// Of `elements` elements: bytes [elements], scales float32 [stretches(elements)], zeros at first.
struct MomentCodes {
  at::Tensor first, second;              // uint8
  at::Tensor first_scale, second_scale;  // float32
};

// One step of the rule, in place: weights and gradient float32 [n], contiguous, on one device. Element 0 begins a
// stretch. The second moment has a sign if the terms have an error variance. Throws std::invalid_argument with the rule
// and the value. A gradient that is not finite makes its weight so.
void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentCodes& moments);
// The same with moments in float32 [n], for tensors too small to be worth coding.
void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient, const at::Tensor& first,
                const at::Tensor& second);

// Moments in bfloat16 [n]: 4 bytes an element, no stretches. Every step rounds them to one of their two neighbours, at
// random and without bias: a moment moves by a fraction of its rounding step and more (see above), and rounding to the
// nearest would take that back every time. The random bits follow from parameter, step and the element's position
// alone, so every cut of the elements gives the same bits. They are no secret: moments follow from public numbers.
//
// Rounding adds noise of its own: neighbours are at most 2^-7 of the value apart, so sqrt(1/6)·2^-7 of it in a step,
// and of 1/(1−beta²) steps the moment remembers: at most 0.7 % of a first moment (beta1 = 0.9) and 7 % of a second one
// (beta2 = 0.999), twice the spread of F. So the excess is stored here too if there is a known error variance, and the
// noise is relative to it.
struct MomentHalves {
  at::Tensor first, second;  // bfloat16
  uint32_t stream;           // rounding_stream of parameter and step
  uint64_t first_element;    // position of element 0 in its parameter
};
uint32_t rounding_stream(uint32_t parameter, int64_t step);
inline uint16_t* halves_of(const at::Tensor& moment) {
  return reinterpret_cast<uint16_t*>(moment.mutable_data_ptr<at::BFloat16>());
}
void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentHalves& moments);

// values float32 [n] from and to codes, in host memory. Values that decode() gave encode to the same codes and scales.
void encode_moments(const at::Tensor& values, CodeSign sign, const at::Tensor& codes, const at::Tensor& scales);
void decode_moments(const at::Tensor& codes, const at::Tensor& scales, CodeSign sign, const at::Tensor& values);

}  // namespace ghostshard::kernels
