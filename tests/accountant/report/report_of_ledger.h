// A ledger of three steps, the last one redone, and the report of it: what the report's tests have in common.
#pragma once

#include <string>

#include "accountant/accountant.h"
#include "accountant/report.h"

namespace ghostshard::accountant {

inline const nlohmann::json kNotStated = "not stated by the run";
inline constexpr double kRate = 256.0 / 2560;

inline LedgerContents ledger(const nlohmann::json& header_changes = nlohmann::json::object()) {
  LedgerContents contents;
  contents.header = {{"type", "header"},
                     {"schema", kLedgerSchema},
                     {"library_version", kLibraryVersion},
                     {"adjacency", "zero-out"},
                     {"run_id", "run 7"},
                     {"unit_of_privacy", "document"},
                     {"units", 2560},
                     {"expected_batch", 256},
                     {"sampling_rate", kRate},
                     {"noise_multiplier", 2.0},
                     {"clip_norm", 0.5},
                     {"planned_steps", 4},
                     {"previous", std::string(64, '0')}};
  contents.header.update(header_changes);
  contents.header_hash = std::string(64, 'a');
  contents.head = std::string(64, 'b');
  const Event event = PoissonGaussianEvent{SamplingRate(kRate), NoiseMultiplier(2)};
  // Three steps, the last one redone.
  contents.entries = {{1, 0, 0, event, ""}, {2, 1, 0, event, ""}, {3, 2, 0, event, ""}, {4, 2, 1, event, ""}};
  return contents;
}

inline nlohmann::json report(const nlohmann::json& facts = nlohmann::json::object(),
                             const nlohmann::json& header_changes = nlohmann::json::object()) {
  return build_report(ledger(header_changes), Delta(1e-6), facts);
}

inline EpsilonBound four_releases(double delta, const char* accountant = "contour") {
  const auto engine = make_accountant(accountant, Adjacency::kZeroOut);
  engine->compose(PoissonGaussianEvent{SamplingRate(kRate), NoiseMultiplier(2)}, 4);
  return engine->epsilon(Delta(delta));
}

inline std::string statement(const nlohmann::json& built) { return built.at("guarantee").at("statement"); }

}  // namespace ghostshard::accountant
