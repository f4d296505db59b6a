// A run's checkpoints: when they are due, and how a failure to write one is treated.
//
// If a checkpoint cannot be written (a full disk), the failure is reported and the run goes on: ending it would throw
// away steps that were charged and would have to be charged again. If the run ends there anyway, after a signal, the
// failure is an error.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"
#include "examples/gpt2/options.h"
#include "fsdp/checkpoint.h"

namespace ghostshard::gpt2 {

class Checkpointing {
 public:
  // ledger: rank 0's, null elsewhere and without privacy. about: kept beside weights and step. newest: the step of the
  // checkpoint that the run resumed from. All references must outlive it.
  Checkpointing(const Options& options, fsdp::ShardedModel& model, fsdp::OptimizerState& optimizer,
                const accountant::LedgerWriter* ledger, nlohmann::json about, std::optional<int64_t> newest);

  // Every k steps; also after the last step, if the run was long enough to have had a checkpoint or ends before its
  // planned end.
  bool due(int64_t steps_done, int64_t last_step, int64_t planned_steps) const;
  // Writes a checkpoint unless it is there already. Returns the reason if it could not be written, the same failure on
  // every rank; otherwise an empty text. A collective.
  std::string save(int64_t steps_done);
  const std::optional<int64_t>& newest() const { return newest_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  const Options& options_;
  fsdp::ShardedModel& model_;
  fsdp::OptimizerState& optimizer_;
  const accountant::LedgerWriter* ledger_;
  nlohmann::json about_;
  std::filesystem::path folder_;
  int64_t every_;
  std::optional<int64_t> newest_;
};

}  // namespace ghostshard::gpt2
