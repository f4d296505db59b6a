// Which constants a plan can be made of (dp/mechanism/plan.h).
#pragma once

#include <cstdint>

#include "dp/mechanism/plan.h"

namespace ghostshard::dp {

// Throws std::invalid_argument, the rule and the value, unless every constant can be kept and what is combined is
// proven together (docs/guarantee.md).
void check_constants(const DpConfig& config);

bool in_bins(const DpConfig& config);
int64_t bins_of(const DpConfig& config);  // steps of a pass, of balls-in-bins sampling

}  // namespace ghostshard::dp
