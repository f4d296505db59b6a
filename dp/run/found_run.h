// What the folder of an earlier session proves about its run.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"
#include "accountant/rounds.h"
#include "dp/run/resume.h"
#include "fsdp/checkpoint.h"
#include "fsdp/mesh.h"

namespace ghostshard::dp {

struct FoundRun {
  std::string checkpoint;  // empty: none was written, start again at step 0
  int64_t step = 0;
  int64_t releases = 0;       // charged so far
  accountant::Rounds rounds;  // the same, by groups of units or, with noise from buffers, by rows of chains
  Attempts attempts;
  // As found; on ranks other than 0 the header alone.
  accountant::LedgerContents ledger;
  int64_t steps_charged = 0;  // different steps; if they are charged by passes, those up to the checkpoint
  bool reported = false;      // there is a report that belongs to this ledger

  nlohmann::json to_json() const;
  static FoundRun from_json(const nlohmann::json& json);
};

// For rank 0. Checkpoints and metrics are witnesses: what they know, the ledger must know. std::invalid_argument naming
// the folder and what is missing or cannot be proven.
FoundRun find_private_run(const std::filesystem::path& folder);

// A run without privacy has no ledger: its newest checkpoint, if there is one. std::invalid_argument as above.
FoundRun find_plain_run(const std::filesystem::path& folder);

// A run that goes on writes into its folder, and into the files that are there: std::invalid_argument if it may not.
void require_writable(const std::filesystem::path& folder);

// fsdp::load_checkpoint, whose failure says what a checkpoint that is damaged can be replaced by. A collective.
void load_or_name_an_older(fsdp::ShardedModel& model, fsdp::OptimizerState& optimizer,
                           const fsdp::Checkpoint& checkpoint);

// What one of these finds on rank 0, on every rank; AgreedFailure on every rank if it throws. A collective.
FoundRun find_on_all(FoundRun (*find)(const std::filesystem::path&), const std::filesystem::path& folder,
                     fsdp::Mesh& mesh);

}  // namespace ghostshard::dp
