// From options to a run that can begin: inputs read and checked, the step planned, model and optimizer made.
#pragma once

#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "dp/mechanism/plan.h"
#include "examples/gpt2/checkpoint.h"
#include "examples/gpt2/dataset.h"
#include "examples/gpt2/options.h"
#include "examples/gpt2/parameter_rules.h"
#include "examples/gpt2/step_model.h"
#include "fsdp/learning_rate.h"

namespace ghostshard::gpt2 {

// The files that the options name, read and checked, and everything that follows from them alone.
struct Inputs {
  std::optional<Folder> folder;
  Config config;
  nlohmann::json original_config;
  std::optional<Dataset> data;
  std::optional<Dataset> eval;
  std::optional<ParameterRules> rules;  // of the parameters' optimizers
  int64_t steps = 0;
  fsdp::LearningRateSchedule rate;
  std::optional<dp::DpConfig> budget;  // none: without privacy
};

// Finds every mistake that a user can make. Writes nothing and does not communicate. std::invalid_argument with one
// sentence.
Inputs read_inputs(const Options& options);

ModelOptions model_options(const Options& options);
// 0: only if stopped. Without privacy a run that dies has only lost time; a private one has spent its budget for
// nothing.
int64_t checkpoint_every(const Options& options);
std::filesystem::path model_file(const Options& options);  // the last file that a run writes

// From public numbers alone: the expected batch, and the lengths of the public texts if there are any.
PlannedStep planned_step(const Options& options, const Inputs& in, const ModelOptions& model, fsdp::Mesh& mesh,
                         const dp::StepCosts& costs);

}  // namespace ghostshard::gpt2
