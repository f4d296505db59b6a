// Weights stored in bfloat16 with nothing beside them: 2 bytes each instead of the 4 of float32 masters. After an
// optimizer's step each weight is rounded to one of its two neighbours, at random and without bias (stochastic
// rounding: arXiv:1502.02551, section 3).
//
// Why at random. Neighbours are between 2^-8 and 2^-7 of a weight apart, so rounding to the nearest undoes every step
// shorter than 2^-9 of it: AdamW's at a learning rate of 1e-3 moves weights above 0.5 no more. Rounded at random a step
// u within a distance e of neighbours has the mean u and the variance u·(e − u) < u·e. T such steps go T·u, give or
// take sqrt(T·u·e): further than their error once T·u > e, the first neighbour reached.
//
// The bits follow from parameter, step and the element's position alone (kernels/device/keyed_rounding.h): the same on
// every mesh and after a resume. They are public, and serve nothing that is secret.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace ghostshard::kernels {

// values float32 [n], stored bfloat16 [n], contiguous and on one device; element i is the (first_element + i)-th of
// parameter number `parameter`, after step number `step`. What is not finite stays so; a number beyond the largest of
// bfloat16 may become infinite. std::invalid_argument with the rule and the value unless shapes, dtypes and devices
// fit.
void round_weights(const at::Tensor& values, uint32_t parameter, int64_t step, uint64_t first_element,
                   const at::Tensor& stored);

}  // namespace ghostshard::kernels
