#include "dp/run/resume.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace ghostshard::dp {

LedgerMark mark_of(const accountant::LedgerWriter& ledger) {
  return {.header_hash = ledger.header_hash(), .head = ledger.head(), .releases = ledger.entries()};
}

nlohmann::json to_json(const LedgerMark& mark) {
  return {{"header_hash", mark.header_hash}, {"head", mark.head}, {"releases", mark.releases}};
}

LedgerMark ledger_mark_from_json(const nlohmann::json& json) {
  try {
    return {.header_hash = json.at("header_hash").get<std::string>(),
            .head = json.at("head").get<std::string>(),
            .releases = json.at("releases").get<int64_t>()};
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(std::string("a checkpoint must say where the ledger stood: ") + error.what());
  }
}

Attempts::Attempts(const accountant::LedgerContents& ledger, int64_t first) {
  for (const accountant::LedgerEntry& entry : ledger.entries) {
    if (entry.step < first) continue;
    int64_t& next = next_[entry.step];
    next = std::max(next, entry.attempt + 1);
  }
}

StepId Attempts::of(int64_t step) const {
  const auto charged = next_.find(step);
  return {.step = step, .attempt = charged == next_.end() ? 0 : charged->second};
}

nlohmann::json Attempts::to_json() const {
  nlohmann::json pairs = nlohmann::json::array();
  for (const auto& [step, attempt] : next_) pairs.push_back({step, attempt});
  return pairs;
}

Attempts Attempts::from_json(const nlohmann::json& json) {
  Attempts attempts;
  for (const auto& pair : json) attempts.next_[pair.at(0).get<int64_t>()] = pair.at(1).get<int64_t>();
  return attempts;
}

Attempts resume_attempts(const accountant::LedgerContents& ledger, const std::optional<LedgerMark>& mark, int64_t step,
                         bool left_out) {
  if (!mark) {
    if (step != 0) throw std::invalid_argument("without a mark a run can only start again at step 0");
    return {ledger, 0};
  }
  if (mark->header_hash != ledger.header_hash) {
    throw std::invalid_argument("the ledger is another run's than the checkpoint's: its header's hash must be " +
                                mark->header_hash + ", is " + ledger.header_hash);
  }
  // The last line that the mark covers.
  int64_t last = -1;
  if (mark->head == ledger.header_hash) last = 0;
  for (const auto& entry : ledger.entries) {
    if (entry.hash == mark->head) last = entry.sequence;
  }
  for (const auto& epoch : ledger.epochs) {
    if (epoch.hash == mark->head) last = epoch.sequence;
  }
  if (last < 0) {
    throw std::invalid_argument(
        "the ledger does not hold the line at which the checkpoint was taken (" + std::to_string(mark->releases) +
        " releases then, " + std::to_string(ledger.entries.size()) +
        " in the ledger): it is behind the checkpoint, was cut or was rewritten, so what was spent cannot be proven");
  }
  int64_t releases = 0;
  std::set<int64_t> charged;
  for (const auto& entry : ledger.entries) {
    if (entry.sequence > last) break;
    ++releases;
    for (const int64_t covered : accountant::steps_of(entry, ledger.header))
      if (covered < step) charged.insert(covered);
  }
  if (releases != mark->releases) {
    throw std::invalid_argument("up to the checkpoint's line the ledger must hold " + std::to_string(mark->releases) +
                                " releases, holds " + std::to_string(releases));
  }
  if (!left_out && static_cast<int64_t>(charged.size()) != step) {
    throw std::invalid_argument("the checkpoint has done " + std::to_string(step) + " steps, but the ledger charged " +
                                std::to_string(charged.size()) + " of them before it was taken");
  }
  return {ledger, step};
}

namespace {

bool made(const RunKey& key, const nlohmann::json& facts) {
  return facts.is_object() && facts.contains("commitment") && facts.at("commitment") == key.commitment();
}

}  // namespace

std::optional<RunKey> recall_key(const std::filesystem::path& key_file, const accountant::LedgerContents& ledger) {
  const auto recalled = [&](const std::string& run_id) { return RunKey::recall(key_file, run_id_from_hex(run_id)); };
  const auto begun = ledger.header.value("key", nlohmann::json::object());
  RunKey first = recalled(ledger.header.value("run_id", std::string()));
  const bool is_last = ledger.epochs.empty() ? made(first, begun)
                                             : made(recalled(ledger.epochs.back().run_id), ledger.epochs.back().key);
  const auto& last = ledger.epochs.empty() ? begun : ledger.epochs.back().key;
  if (last.contains("commitment") && !is_last) {
    throw std::invalid_argument("the noise key file " + key_file.string() +
                                " does not hold the key of this run: give the right one, or none to go on under a new "
                                "key");
  }
  return made(first, begun) ? std::optional(std::move(first)) : std::nullopt;
}

}  // namespace ghostshard::dp
