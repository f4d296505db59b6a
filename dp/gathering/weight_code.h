// The codes of kernels/coded_weights.h for the weights of a sharded model on their way between ranks.
//
// They touch no guarantee. Codes and scales are functions of the master weights, and these are released, or were public
// from the start: whatever is computed from them is post-processing. A step's losses, gradients of units, norms and
// clipped sums are all computed from the weights that Parameter::value() shows, which are the codes' values in every
// pass of a step; a unit's clipped gradient is bounded whatever the weights are.
#pragma once

#include <cstdint>
#include <memory>

#include "fsdp/gather_code.h"
#include "kernels/coded_weights.h"

namespace ghostshard::dp {

// Vectors and parameters of fewer elements travel as they are: their scales and padding would not pay.
inline constexpr int64_t kLeastCodedWeights = 4096;

// name(): "int8 by 256" or "float8 by 256". std::invalid_argument unless least_elements >= 1.
std::shared_ptr<const fsdp::GatherCode> weight_code(kernels::WeightCode code,
                                                    int64_t least_elements = kLeastCodedWeights);

}  // namespace ghostshard::dp
