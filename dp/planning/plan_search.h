// The search for plans (dp/planning/step_plan.h).
#pragma once

#include <vector>

#include "dp/planning/step_plan.h"

namespace ghostshard::dp {

// Plans from the fastest to small ones, appraised. Some may be beaten by others. Greedy: it takes back one kind of
// choice at a time and after each time restores the choices that have come to fit again.
std::vector<StepPlan> search_plans(const std::vector<PlannedBlock>& model, const StepShape& shape);

}  // namespace ghostshard::dp
