// Weights in bfloat16 that are rounded at random after each step (kernels/rounded_weights.h). The bits follow from
// public numbers, and what an optimizer makes of released gradients and public numbers is post-processing.
#pragma once

#include <memory>

#include "fsdp/weight_rounding.h"

namespace ghostshard::dp {

std::shared_ptr<const fsdp::WeightRounding> keyed_weight_rounding();

}  // namespace ghostshard::dp
