// The price of a plan's choices: memory at its peak, traffic, time and FLOPs beyond the same step without privacy.
// The search for a plan (dp/planning/step_plan.h) and its explanation compute with the same figures.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "dp/planning/step_plan.h"

namespace ghostshard::dp {

inline constexpr double kFloatBytes = 4;
// The peak that a plan without a given budget aims at, as a multiple of plain_peak_bytes().
inline constexpr double kDefaultOverPlain = 1.5;

kernels::Segments segments_of(const StepShape& shape);

// FLOPs of a matrix's norms and records in one microbatch, beyond the plain weight gradient.
double norm_flops(kernels::Recording way, const PlannedMatrix& matrix, const StepShape& shape,
                  const kernels::Segments& segments);
// Bytes that a matrix's record keeps from its backward until the microbatch is clipped.
double recorded_bytes(kernels::Recording way, const PlannedMatrix& matrix, const StepShape& shape);
double gathered_bytes_of(const PlannedBlock& block, const StepShape& shape);
// Of all ranks' messages in one gather of the block.
double sent_bytes_of(const PlannedBlock& block, const StepShape& shape);

// A matrix's record by each way, of one microbatch.
struct RecordPrice {
  double seconds, flops, bytes;  // flops: norm_flops
};
// By block, matrix and kernels::Recording: they follow from the model and the shape alone, and a search asks for them
// again and again.
using RecordPrices = std::vector<std::vector<std::array<RecordPrice, 4>>>;
RecordPrices record_prices(const std::vector<PlannedBlock>& model, const StepShape& shape);

// Fills in every figure of the plan that follows from its choices.
void appraise(StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
              const RecordPrices& prices);
inline void appraise(StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape) {
  appraise(plan, model, shape, record_prices(model, shape));
}

// Every block gathered alike, unless it is always gathered; gradients accumulated, every matrix replayed. Not
// appraised.
StepPlan with_all(const std::vector<PlannedBlock>& model, fsdp::Residency residency);

std::string mebibytes(double bytes);

}  // namespace ghostshard::dp
