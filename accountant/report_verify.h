// Compares a report with its ledger: every number is computed again from the ledger.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"

namespace ghostshard::accountant {

struct Finding {
  enum class Verdict { kAgrees, kDiffers, kCannotTell };
  Verdict verdict = Verdict::kAgrees;
  std::string what;  // one sentence or the place of a value in the report
};

// Compares the ledger's head with one kept elsewhere (in a checkpoint, in a published report); read_ledger, which made
// `ledger`, has verified the chain itself. Without such a head the answer is kCannotTell: neither another last line nor
// lines missing at the end can be seen.
std::vector<Finding> verify_head(const LedgerContents& ledger, const std::optional<std::string>& head);

// What the ledger's lines say against its header and against each other, one finding for each rule that they break; the
// report says the same under assumptions. Nothing if they break none.
std::vector<Finding> verify_plan(const LedgerContents& ledger);

// Rebuilds the report for the delta and the accountant that it names, and compares value by value. Numbers may differ
// by 1e-9 of their size, as between two compilers. Statements of the run that the ledger does not hold are taken from
// the report and listed as not checkable. Throws std::invalid_argument if the JSON is no report of this schema.
std::vector<Finding> verify_report(const LedgerContents& ledger, const nlohmann::json& report);

}  // namespace ghostshard::accountant
