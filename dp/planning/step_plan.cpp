#include "dp/planning/step_plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "dp/planning/appraisal.h"
#include "dp/planning/plan_search.h"

namespace ghostshard::dp {
namespace {

using kernels::Recording;

// Those that no other plan beats: none is as fast with less memory, nor as small in less time.
std::vector<StepPlan> undominated(std::vector<StepPlan> plans) {
  std::stable_sort(plans.begin(), plans.end(), [](const StepPlan& a, const StepPlan& b) {
    return std::pair(a.seconds(), a.peak_bytes()) < std::pair(b.seconds(), b.peak_bytes());
  });
  std::vector<StepPlan> front;
  for (StepPlan& plan : plans) {
    if (front.empty() || plan.peak_bytes() < front.back().peak_bytes()) front.push_back(std::move(plan));
  }
  return front;
}

const StepPlan& plan_by_room(const std::vector<StepPlan>& front, double plain, double room) {
  const double limit = std::min(room, kDefaultOverPlain * plain);
  // If even the smallest is too large it is the answer: nobody asked for a limit.
  size_t chosen = 0;
  while (chosen + 1 < front.size() && front[chosen].peak_bytes() > limit) ++chosen;
  for (size_t larger = chosen; larger > 0 && front[larger - 1].peak_bytes() <= room; --larger) {
    if (saves_little_for_much(front[larger - 1], front[chosen])) chosen = larger - 1;
  }
  return front[chosen];
}

void check(const StepShape& shape) {
  if (shape.units >= 1 && shape.rows_per_unit >= 1 && shape.microbatches >= 1 && shape.shard_ranks >= 1) return;
  throw std::invalid_argument("a step to plan must have at least one unit, one row, one microbatch and one rank, got " +
                              std::to_string(shape.units) + ", " + std::to_string(shape.rows_per_unit) + ", " +
                              std::to_string(shape.microbatches) + " and " + std::to_string(shape.shard_ranks));
}

}  // namespace

bool StepPlan::two_pass() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlockChoice& choice) {
    return std::find(choice.recording.begin(), choice.recording.end(), Recording::kTwoPass) != choice.recording.end();
  });
}

Recording StepPlan::recording_of(const std::vector<PlannedBlock>& model, const std::string& parameter) const {
  for (size_t i = 0; i < model.size(); ++i) {
    for (size_t m = 0; m < model[i].matrices.size(); ++m) {
      if (model[i].matrices[m].parameter == parameter) return blocks[i].recording[m];
    }
  }
  throw std::out_of_range("the plan has no matrix '" + parameter + "'");
}

double plain_peak_bytes(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  StepShape plain = shape;
  plain.records = false;
  StepPlan plan = with_all(model, fsdp::Residency::kRegather);
  appraise(plan, model, plain);
  return plan.peak_bytes();
}

bool saves_little_for_much(const StepPlan& large, const StepPlan& small) {
  return small.peak_bytes() > 0.8 * large.peak_bytes() && small.seconds() > 1.05 * large.seconds();
}

StepPlan plan_step(const std::vector<PlannedBlock>& model, const StepShape& shape, const MemoryBudget& budget) {
  const auto front = plan_front(model, shape);
  const double plain = plain_peak_bytes(model, shape);
  if (!budget.given()) return plan_by_room(front, plain, shape.costs.room_bytes);
  const double bytes = budget.bytes ? *budget.bytes : *budget.times_plain * plain;
  for (const StepPlan& plan : front) {
    if (plan.peak_bytes() <= bytes) return plan;
  }
  throw std::invalid_argument("the memory budget must be at least " + mebibytes(front.back().peak_bytes()) +
                              " for this model and microbatch on each rank, got " + mebibytes(bytes) +
                              "; a smaller --microbatch or --activation-checkpointing needs less");
}

std::vector<StepPlan> plan_front(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  check(shape);
  return undominated(search_plans(model, shape));
}

}  // namespace ghostshard::dp
