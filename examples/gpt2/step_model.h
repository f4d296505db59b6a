// GPT-2's sizes as dp/planning/step_plan.h plans with them, and a plan as the model and the clipper take it.
#pragma once

#include <filesystem>
#include <vector>

#include "dp/mechanism/clipper.h"
#include "dp/planning/step_plan.h"
#include "examples/gpt2/model.h"

namespace ghostshard::gpt2 {

// Units in order of forward, of one rank of a mesh with this many model ranks. specs: as the model is built from them.
std::vector<dp::PlannedBlock> planned_blocks(const Config& config, const std::vector<fsdp::BlockSpec>& specs,
                                             const ModelOptions& options, int64_t model_ranks);

// A plan together with what it was made for.
struct PlannedStep {
  std::vector<dp::PlannedBlock> blocks;
  dp::StepShape shape;
  dp::StepPlan plan;
};

// What steps of a run cost on its device: as its folder has them, or measured, on all ranks together. The first rank
// keeps them in the folder once that is there, so that a run which goes on plans as it did.
dp::StepCosts costs_of_run(fsdp::Mesh& mesh, const std::filesystem::path& folder, at::ScalarType rows);
void keep_costs(const fsdp::Mesh& mesh, const std::filesystem::path& folder, const dp::StepCosts& costs);

std::vector<fsdp::Residency> residency_of(const dp::StepPlan& plan);

// For the model that was built with the plan's residency.
dp::ClipperOptions clipper_options(const PlannedStep& step, const fsdp::ShardedModel& model);

}  // namespace ghostshard::gpt2
