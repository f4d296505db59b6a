// Resuming a run that ended before its last step: its ledger's proof, and the attempt that each step is on.
//
// Every session that goes on is a new epoch of the ledger, with a run id of its own: its coins and its noise are
// independent of all others, even if they have the same key file and the folder was copied.
//
// A checkpoint keeps a LedgerMark. On resuming, the ledger must hold the very line at which the mark was taken: then it
// is the same run's, and nothing before that line was cut off or rewritten. Releases after it were made by steps whose
// results are lost. Each such step is repeated as a new attempt, with new coins and new noise (both follow from the
// attempt, dp/mechanism/run_key.h), and charged again: the guarantee counts every release that may have happened
// (docs/guarantee.md, facts 6 and 8), and no two releases share noise (fact 3).
//
// A folder alone cannot show that *everything* in it, ledger and checkpoints, was put back to an earlier state. Whoever
// restores a backup of a run must compare the ledger's head with one kept elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"
#include "dp/mechanism/run_key.h"

namespace ghostshard::dp {

// A position in a ledger.
struct LedgerMark {
  std::string header_hash;
  std::string head;
  int64_t releases = 0;
};
LedgerMark mark_of(const accountant::LedgerWriter& ledger);
nlohmann::json to_json(const LedgerMark& mark);
LedgerMark ledger_mark_from_json(const nlohmann::json& json);  // std::invalid_argument naming the rule

// The attempt that a step would be: 0 for a step never charged, otherwise one more than the last one charged.
class Attempts {
 public:
  Attempts() = default;  // of a new run
  // From a ledger, for steps from `first` on.
  Attempts(const accountant::LedgerContents& ledger, int64_t first);
  StepId of(int64_t step) const;
  int64_t redone() const { return static_cast<int64_t>(next_.size()); }  // steps charged before, from `first` on

  // For the ranks that do not read the ledger.
  nlohmann::json to_json() const;
  static Attempts from_json(const nlohmann::json& json);

 private:
  std::map<int64_t, int64_t> next_;  // for steps that were charged
};

// The attempts of a run that resumes after `step` steps from a checkpoint with this mark; without a mark, from the
// start (step 0). Throws std::invalid_argument if the ledger proves too little: it is another run's; it does not hold
// the mark (it is behind the checkpoint, or was cut or rewritten); it lacks a release of a step that the checkpoint has
// done. left_out: steps of the run may have been left out (dp/run/session.h, draw_from), so that the last of these
// three says nothing; the mark alone says how many releases there were.
Attempts resume_attempts(const accountant::LedgerContents& ledger, const std::optional<LedgerMark>& mark, int64_t step,
                         bool left_out = false);

// The key of the run's first epoch, if the file holds it: it recognises the run's secret parts (dp/run/agreement.h).
// Nothing if the run began under another key. std::invalid_argument if the file is not the one that the run's last
// epoch used.
std::optional<RunKey> recall_key(const std::filesystem::path& key_file, const accountant::LedgerContents& ledger);

}  // namespace ghostshard::dp
