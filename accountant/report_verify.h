// Does a report say what its ledger says? Every number is computed again from the ledger and compared.
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

// The chain itself was verified by read_ledger, which made `ledger`; here its head is compared with one kept elsewhere
// (a checkpoint, a published report). Without one: kCannotTell, since lines missing at the end cannot be seen.
std::vector<Finding> verify_head(const LedgerContents& ledger, const std::optional<std::string>& head);

// Rebuilds the report for the delta and the accountant that it names and compares value by value; numbers may differ
// by 1e-9 of their size, as between two compilers. What the run stated beyond the ledger is taken over from the report
// and named as not checkable. Throws std::invalid_argument where the JSON is no report of this schema.
std::vector<Finding> verify_report(const LedgerContents& ledger, const nlohmann::json& report);

}  // namespace ghostshard::accountant
