// The receipt: a certificate that proves a run's epsilon to somebody who trusts neither this library nor its engines.
//
// docs/receipt.md has the inequality and the fields. `ghostshard-check-receipt` checks a receipt beside its ledger; it
// shares no code with this library. Nothing here has to be right for a receipt to be sound: a wrong number is refused.
#pragma once

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"
#include "accountant/types.h"

namespace ghostshard::accountant {

inline constexpr const char* kReceiptSchema = "ghostshard.receipt/1";

// A receipt for the ledger's releases at this delta. `stated` is the epsilon that the report claims. The receipt proves
// it if a contour of some hundred nodes does; otherwise the receipt's "epsilon" is the least that it can prove, which
// may lie above "report_epsilon", by 1e-6 or so if moments had to be smoothed, by some percent if only Chernoff's bound
// can be checked in time. Throws std::invalid_argument for events that receipts do not cover (all but Gaussians,
// Poisson-sampled Gaussians and adaptive clipping), and if nothing finite can be proven.
nlohmann::json make_receipt(const LedgerContents& ledger, Delta delta, Epsilon stated);

}  // namespace ghostshard::accountant
