// Resuming a run that did not reach its end: its folder's contents, the proof that it is this run's, the step to start
// from.
//
// Rank 0 alone reads ledger and manifests and decides. It tells the other ranks, because ranks that disagree about an
// attempt would draw different coins. Nothing in the folder changes before every check has passed. The plan
// (dp/mechanism/plan.h) must agree, and so must every option that is not in kFreeToChange (resume.cpp). Only the number
// of texts in the private data is compared. With the run's key file an HMAC of the data under that key is compared too,
// because only then could one noise meet two sums. A hash without a key would let anyone who sees a checkpoint test
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

// The point from which a run resumes.
struct Resumption {
  std::string checkpoint;  // empty: none was written, start again at step 0
  int64_t step = 0;
  int64_t releases = 0;  // charged so far
  dp::Attempts attempts;
  // As found; on ranks other than 0 the header alone.
  accountant::LedgerContents ledger;
  bool outputs_whole = false;  // a model and, with privacy, a report that belongs to this ledger
  int64_t steps_charged = 0;   // different steps

  nlohmann::json to_json() const;
  static Resumption from_json(const nlohmann::json& json);
};

// For rank 0. std::invalid_argument naming the fact that is missing, differs or cannot be proven.
Resumption find_run(const Options& options);

// Takes lines of lost steps out of metrics.jsonl, which then ends with `step` or earlier, and removes outputs that the
// resumed run will write anew. Returns the kept lines' figures.
struct KeptMetrics {
  double seconds = 0;     // of the last kept line
  bool has_step = false;  // the line of `step` itself is there
  std::optional<double> first_eval_loss, last_eval_loss, last_eval_standard_error;
};
KeptMetrics prepare_folder(const std::filesystem::path& output, int64_t step);

// Adds the resumption to run_folder.h's facts for the report.
void add_resumption(nlohmann::json& facts, int64_t first, int64_t last, int64_t planned_steps);

}  // namespace ghostshard::gpt2
