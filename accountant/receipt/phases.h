// The releases of a ledger as the phases of a receipt.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/gaussian/composed_release.h"
#include "accountant/ledger.h"

namespace ghostshard::accountant::receipt {

struct Phases {
  nlohmann::json events;                  // [{"event": …, "count": n}], each event once
  nlohmann::json listed;                  // [{"sampling_rate", "noise_multiplier", "count", "events": [i, …]}]
  std::vector<ComposedRelease> composed;  // the same, in the same order
  bool merged = false;                    // whether a phase is less private than some of its events
};

// One phase for each distinct pair (q, sigma), or at most `most`: neighbours in q and sigma are then put together under
// their largest q and least sigma. Throws std::invalid_argument for events that receipts do not cover.
Phases phases_of(const LedgerContents& ledger, size_t most);

}  // namespace ghostshard::accountant::receipt
