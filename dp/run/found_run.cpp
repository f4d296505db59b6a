#include "dp/run/found_run.h"

#include <unistd.h>

#include <cerrno>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>

#include "accountant/blt_rows.h"
#include "dp/run/metrics.h"
#include "fsdp/agree.h"
#include "fsdp/checkpoint.h"
#include "fsdp/regular_file.h"

namespace ghostshard::dp {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& folder, const std::string& rule) {
  throw std::invalid_argument(folder.string() + ": " + rule);
}

int64_t folders_in(const std::filesystem::path& checkpoints) {
  int64_t folders = 0;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, unreadable)) {
    folders += entry.path().extension() != ".partial" && entry.is_directory(unreadable);
  }
  return folders;
}

std::string way_on_without(const std::filesystem::path& checkpoints) {
  return std::string("; if it is damaged, remove its folder: the run then goes on ") +
         (folders_in(checkpoints) > 1 ? "from the newest other one" : "at the start") +
         ", and what it repeats is charged again";
}

std::vector<fsdp::Checkpoint> checkpoints_in(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) refuse(folder, "it must be the folder of an earlier run, there is none");
  try {
    return fsdp::list_checkpoints(folder / "checkpoints");
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(error.what() + way_on_without(folder / "checkpoints"));
  }
}

void take_newest(FoundRun& found, const std::vector<fsdp::Checkpoint>& checkpoints) {
  if (checkpoints.empty()) return;
  found.checkpoint = checkpoints.back().path.string();
  found.step = checkpoints.back().step;
}

constexpr uint64_t kMostBytesOfReport = uint64_t{1} << 30;

bool is_reported(const std::filesystem::path& folder, const accountant::LedgerContents& ledger) {
  const auto path = folder / "privacy_report.json";
  if (!std::filesystem::exists(path)) return false;
  const auto report =
      nlohmann::json::parse(fsdp::read_text(path, kMostBytesOfReport), nullptr, /*allow_exceptions=*/false);
  return report.is_object() && report.contains("provenance") &&
         report["provenance"].value("ledger_head", "") == ledger.head;
}

}  // namespace

void require_writable(const std::filesystem::path& folder) {
  for (const auto& place : {folder, folder / "ledger.jsonl", folder / "metrics.jsonl", folder / "checkpoints"}) {
    if (!std::filesystem::exists(place)) continue;
    if (::access(place.c_str(), std::filesystem::is_directory(place) ? W_OK | X_OK : W_OK) == 0) continue;
    throw std::invalid_argument("a run that goes on must be able to write " + place.string() +
                                ", it may not: " + std::generic_category().message(errno));
  }
}

void load_or_name_an_older(fsdp::ShardedModel& model, fsdp::OptimizerState& optimizer,
                           const fsdp::Checkpoint& checkpoint) {
  try {
    fsdp::load_checkpoint(model, optimizer, checkpoint);
  } catch (const fsdp::AgreedFailure& failure) {
    throw fsdp::AgreedFailure(failure.what() + way_on_without(checkpoint.path.parent_path()),
                              failure.callers_mistake());
  }
}

nlohmann::json FoundRun::to_json() const {
  return {{"checkpoint", checkpoint},       {"step", step},
          {"releases", releases},           {"rounds", rounds.to_json()},
          {"attempts", attempts.to_json()}, {"header", ledger.header},
          {"reported", reported},           {"steps_charged", steps_charged}};
}

FoundRun FoundRun::from_json(const nlohmann::json& json) {
  FoundRun found;
  found.checkpoint = json.at("checkpoint").get<std::string>();
  found.step = json.at("step").get<int64_t>();
  found.releases = json.at("releases").get<int64_t>();
  found.rounds = accountant::Rounds::from_json(json.at("rounds"));
  found.attempts = Attempts::from_json(json.at("attempts"));
  found.ledger.header = json.at("header");
  found.reported = json.at("reported").get<bool>();
  found.steps_charged = json.at("steps_charged").get<int64_t>();
  return found;
}

FoundRun find_private_run(const std::filesystem::path& folder) {
  const auto checkpoints = checkpoints_in(folder);
  const auto path = folder / "ledger.jsonl";
  if (!std::filesystem::exists(path)) {
    refuse(folder, "it holds no ledger.jsonl, so that nothing can be proven about what was spent");
  }
  FoundRun found;
  take_newest(found, checkpoints);
  found.ledger = accountant::read_ledger(path);
  found.releases = static_cast<int64_t>(found.ledger.entries.size());
  std::set<int64_t> charged;
  bool passes = false;
  const auto blt = accountant::blt_plan(found.ledger.header);
  found.rounds = accountant::Rounds(blt ? blt->rows.steps() : accountant::sampling_groups(found.ledger.header));
  if (blt) {
    for (const int64_t row : accountant::blt_rows_of(found.ledger, *blt)) found.rounds.add(row);
  }
  for (const auto& entry : found.ledger.entries) {
    charged.merge(accountant::steps_of(entry, found.ledger.header));
    passes = passes || std::holds_alternative<accountant::BallsInBinsGaussianEvent>(entry.event);
    if (!blt) found.rounds.add(entry.step);
  }
  // What was charged ahead of a pass need not have been made.
  found.steps_charged = passes ? found.step : static_cast<int64_t>(charged.size());
  found.attempts = Attempts(found.ledger, 0);
  // Older checkpoints are witnesses as well: if the ledger does not know one of them, it was put back.
  for (const auto& checkpoint : checkpoints) {
    const auto mark = ledger_mark_from_json(checkpoint.about.value("ledger", nlohmann::json()));
    try {
      found.attempts = resume_attempts(found.ledger, mark, checkpoint.step);
    } catch (const std::invalid_argument& error) {
      refuse(folder, checkpoint.path.filename().string() + ": " + error.what());
    }
  }
  // So is the file of metrics: a step is shown only after its release was in the ledger.
  for (const auto& line : metrics_lines(folder / "metrics.jsonl")) {
    const auto step = line["step"].get<int64_t>();
    if (step > 0 && !charged.contains(step - 1)) {
      refuse(folder, "metrics.jsonl has " + std::to_string(step) +
                         " steps, but the ledger does not hold the last one's release: it was cut or rewritten, so "
                         "what was spent cannot be proven");
    }
  }
  found.reported = is_reported(folder, found.ledger);
  return found;
}

FoundRun find_plain_run(const std::filesystem::path& folder) {
  FoundRun found;
  take_newest(found, checkpoints_in(folder));
  if (std::filesystem::exists(folder / "ledger.jsonl")) {
    refuse(folder, "it holds a run with privacy, which cannot go on without");
  }
  return found;
}

FoundRun find_on_all(FoundRun (*find)(const std::filesystem::path&), const std::filesystem::path& folder,
                     fsdp::Mesh& mesh) {
  std::optional<FoundRun> found;
  fsdp::agree(mesh, [&] {
    if (mesh.rank() == 0) found.emplace(find(folder));
  });
  const std::string told = fsdp::broadcast_text(mesh, found ? found->to_json().dump() : "");
  return found ? *std::move(found) : FoundRun::from_json(nlohmann::json::parse(told));
}

}  // namespace ghostshard::dp
