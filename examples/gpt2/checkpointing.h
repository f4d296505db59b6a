// When a run saves itself, and what happens when it cannot.
//
// A checkpoint that cannot be written (a full disk) is reported and the run goes on: ending it would throw away steps
// that were charged and would have to be charged again. Where the run ends there anyway, after a signal, that is an
// error.
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
  // ledger: rank 0's, null elsewhere and without privacy. about: resume.h's RunFacts. newest: the step of a checkpoint
  // that is there already. All references must outlive it.
  Checkpointing(const Options& options, fsdp::ShardedModel& model, fsdp::OptimizerState& optimizer,
                const accountant::LedgerWriter* ledger, nlohmann::json about, std::optional<int64_t> newest);

  // Every k steps; also after the last step of a run long enough to have had one, or that ends before its planned end.
  bool due(int64_t steps_done, int64_t last_step, int64_t planned_steps) const;
  // The reason why it could not be written, the same failure on every rank; empty where it was, or is there already. A
  // collective.
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
