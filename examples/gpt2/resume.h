// Going on with a run that did not reach its end: what is in its folder, whether it is this run's, where to start.
//
// Rank 0 alone reads ledger and manifests and decides; the other ranks are told (fsdp/agree.h), because ranks
// that disagree about an attempt would draw different coins. Nothing is changed in the folder before every check
// passed. What must agree: the plan (dp/mechanism/plan.h), and every option that is not in kFreeToChange below. Of the
// private data only its number of texts is compared; with the key file of the run also an HMAC of the file under that
// key, because only then could one noise meet two sums. A hash without a key would let whoever sees a checkpoint test
// guesses of the data.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "dp/mechanism/plan.h"
#include "dp/run/resume.h"
#include "examples/gpt2/options.h"
#include "fsdp/checkpoint.h"

namespace ghostshard::gpt2 {

// Where a run goes on.
struct Resumption {
  std::string checkpoint;  // empty: none was written, start again at step 0
  int64_t step = 0;
  int64_t releases = 0;  // charged so far
  dp::Attempts attempts;
  // As found; for ranks other than 0 the header alone.
  accountant::LedgerContents ledger;
  bool outputs_whole = false;  // a model and, with privacy, a report that belongs to this ledger
  int64_t steps_charged = 0;   // different steps

  nlohmann::json to_json() const;
  static Resumption from_json(const nlohmann::json& json);
};

// For rank 0. std::invalid_argument saying what is missing, differs or cannot be proven.
Resumption find_run(const Options& options);

// The options whose value a resumed run must share, by name, as text.
std::map<std::string, std::string> binding_options(const Options& options);

// What a checkpoint says about its run beside weights and step.
struct RunFacts {
  std::map<std::string, std::string> options;
  nlohmann::json model_config;
  int64_t units = 0;
  int64_t steps = 0;
  std::string data_tag;  // empty without a key file
};
nlohmann::json to_json(const RunFacts& facts);
// std::invalid_argument naming what differs from the checkpoint's.
void check_same_run(const nlohmann::json& about, const RunFacts& facts);

// The key to go on with, for rank 0. With the key file of the run's last epoch: the same key, and nothing new is to be
// written (new_epoch false). Otherwise a key from the file or from the operating system, with a run id of its own.
// std::invalid_argument where the file's commitment is not the ledger's.
struct ResumedKey {
  dp::RunKey key;
  bool new_epoch = false;
};
ResumedKey resumed_key(const Options& options, const accountant::LedgerContents& ledger);

// Takes lines of lost steps out of metrics.jsonl, which then ends with `step` or earlier, and removes outputs that a
// continued run will write anew. Returns how many seconds the kept lines tell of.
struct KeptMetrics {
  double seconds = 0;
  bool has_step = false;  // the line of `step` itself is there
  std::optional<double> first_eval_loss, last_eval_loss, last_eval_standard_error;
};
KeptMetrics prepare_folder(const std::filesystem::path& output, int64_t step);

// What the report says of it, added to run_folder.h's facts.
void add_resumption(nlohmann::json& facts, int64_t first, int64_t last, int64_t planned_steps);

}  // namespace ghostshard::gpt2
