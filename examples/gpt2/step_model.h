// GPT-2's sizes in the form that dp/planning/step_plan.h plans with, and a plan in the form that the model and the
// clipper take.
#pragma once

#include <filesystem>
#include <vector>

#include "dp/mechanism/clipper.h"
#include "dp/planning/step_plan.h"
#include "examples/gpt2/model.h"

namespace ghostshard::gpt2 {

// One rank's blocks in the order of forward, on a mesh with this many model ranks. specs: those that the model is built
// from.
std::vector<dp::PlannedBlock> planned_blocks(const Config& config, const std::vector<fsdp::BlockSpec>& specs,
                                             const ModelOptions& options, int64_t model_ranks);

// A plan together with the blocks and the shape that it was made for.
struct PlannedStep {
  std::vector<dp::PlannedBlock> blocks;
  dp::StepShape shape;
  dp::StepPlan plan;
};

// The costs of a run's steps on its device: those that its folder holds, or measured. A collective, before anything is
// read. Rank 0 keeps in the folder, once that is there, what the plan was made with and a resumed run could not find
// again: the measured speeds of a device, and the room if the plan had to keep to it. Without a file the room of a
// resumed run is infinite.
dp::StepCosts costs_of_run(fsdp::Mesh& mesh, const std::filesystem::path& folder, at::ScalarType rows, bool resumed);
void keep_costs(const fsdp::Mesh& mesh, const std::filesystem::path& folder, const PlannedStep& step);

std::vector<fsdp::Residency> residency_of(const dp::StepPlan& plan);

// For the model that was built with the plan's residency.
dp::ClipperOptions clipper_options(const PlannedStep& step, const fsdp::ShardedModel& model);

}  // namespace ghostshard::gpt2
