// What happens between the steps of a run, with privacy or without: the line of metrics, a look for a signal, a
// checkpoint if one is due.
//
// If a checkpoint finds no room on the disk, older ones make room for it: all but the newest are removed, and it is
// written once more. If it cannot be written even so, the failure is reported and the run goes on: ending it would
// throw away steps that were charged and would have to be charged again. If the run ends there anyway, after a signal,
// the failure is an error.
//
// Weights that are not finite, or larger than any network's, end the run: no further step could mend them, and each
// would be charged. They are released values, so that looking at them costs nothing. No checkpoint holds such weights.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"
#include "dp/run/metrics.h"
#include "dp/run/stop_signal.h"
#include "fsdp/checkpoint.h"

namespace ghostshard::dp {

struct FolderOptions {
  std::filesystem::path folder;    // of the run, for this rank; all ranks must see the same
  bool resume = false;             // otherwise the folder must be new or empty
  int64_t checkpoint_every = 100;  // steps, and at the end; 0: only if stopped by a signal
  int64_t keep_checkpoints = 2;    // the newest
  StopSignal* stop = nullptr;      // must outlive the run
  // For rank 0: a checkpoint could not be written, and the run goes on. null: nobody wants to know.
  std::function<void(const std::string&)> warn = nullptr;
};

// Where a run, new or resumed, stands and how far it goes.
struct Extent {
  int64_t first = 0;  // steps done before this session
  int64_t last = 0;   // at which it ends
  int64_t planned = 0;
  std::optional<int64_t> newest_checkpoint;
};

class Course {
 public:
  // ledger: rank 0's of a private run, otherwise null. about: kept with every checkpoint. All references must outlive
  // it.
  Course(FolderOptions options, const Extent& extent, fsdp::ShardedModel& model, fsdp::OptimizerState& optimizer,
         const accountant::LedgerWriter* ledger, nlohmann::json about);
  // Once the folder is this run's: takes the lines of lost steps out of metrics.jsonl. A collective; rank 0 writes.
  void open_metrics();

  // A public number or text that checkpoints keep from now on.
  void keep(const std::string& name, nlohmann::json value) { about_[name] = std::move(value); }

  const Extent& extent() const { return extent_; }
  int64_t done() const { return done_; }
  void step_is_done() { ++done_; }
  // Ends what was done last. False: there is no further step, because the run came to its end or was stopped. A
  // collective. AgreedFailure if it was to stop with a checkpoint that cannot be written, or the run diverged.
  bool go_on();
  bool stopped() const { return stopped_; }
  // The sentence of a run that diverged. rule: what must be so and, of these weights, is not, without the last words.
  std::string diverged(const std::string& rule) const;

  // Writes the line of the steps done so far on rank 0, unless it is there already.
  void write_metrics(const nlohmann::ordered_json& fields);
  bool needs_metrics() const { return written_ < done_; }  // the same on every rank
  // Of earlier sessions; on rank 0.
  const std::vector<nlohmann::ordered_json>& kept_metrics() const { return kept_; }

  std::filesystem::path checkpoints() const { return options_.folder / "checkpoints"; }
  const std::optional<int64_t>& newest_checkpoint() const { return extent_.newest_checkpoint; }

 private:
  bool due() const;
  bool stop_wanted() const;
  // Looks every few steps, and before the weights are kept. A collective.
  void require_sound_weights(bool kept_next) const;
  // Writes a checkpoint unless it is there already. Returns the reason if it could not be written, the same failure on
  // every rank; otherwise an empty text. A collective.
  std::string save();
  // save(), and once more with the room of older checkpoints. A collective.
  std::string save_in_the_room_there_is();

  FolderOptions options_;
  Extent extent_;
  fsdp::ShardedModel& model_;
  fsdp::OptimizerState& optimizer_;
  const accountant::LedgerWriter* ledger_;
  nlohmann::json about_;
  int64_t done_;
  int64_t ended_;    // the last done_ that go_on() has ended
  int64_t written_;  // the last done_ with a line of metrics
  bool stopped_ = false;
  std::optional<MetricsFile> metrics_;
  std::vector<nlohmann::ordered_json> kept_;
};

}  // namespace ghostshard::dp
