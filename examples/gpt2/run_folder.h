// The folder of a run: metrics.jsonl and ledger.jsonl while it goes, privacy_report.json and model/ at the end.
#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

#include "examples/gpt2/options.h"
#include "examples/gpt2/setup.h"
#include "fsdp/optimizer.h"

namespace ghostshard::gpt2 {

// A name that does not exist yet, or an empty folder. std::invalid_argument otherwise: a run never overwrites another.
void check_output_is_new(const std::filesystem::path& output);

// Asked by rank 0, which writes, before anything is charged: a model that cannot be written at the end is lost, its
// epsilon is spent. std::invalid_argument if the place is read-only, or if its free space, as far as the system tells
// it, does not hold the model in float32 and `checkpoints` of weights and optimizer states.
void check_output_can_hold(const std::filesystem::path& output, const fsdp::ShardedModel& model,
                           const fsdp::OptimizerState& optimizer, int64_t checkpoints);

// What the program knows about a run and the library does not, for its report (dp/run/private_run.h, facts).
nlohmann::json report_facts(const Options& options, const Inputs& in);

}  // namespace ghostshard::gpt2
