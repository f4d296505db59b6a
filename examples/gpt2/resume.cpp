#include "examples/gpt2/resume.h"

#include <fstream>
#include <set>
#include <stdexcept>

#include "fsdp/durable_file.h"

namespace ghostshard::gpt2 {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
}

struct MetricsText {
  std::string text;  // as it stands in the file
  nlohmann::json json;
  int64_t step;
};

// Whole lines that parse; a last line that was cut short is dropped.
std::vector<MetricsText> metrics_lines(const std::filesystem::path& path) {
  std::vector<MetricsText> lines;
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) break;
    const auto step = json["step"].get<int64_t>();
    lines.push_back({line, std::move(json), step});
  }
  return lines;
}

bool outputs_whole(const std::filesystem::path& output, const accountant::LedgerContents* ledger) {
  if (!std::filesystem::exists(output / "model" / "model.safetensors")) return false;
  if (ledger == nullptr) return true;
  const auto report = read_json(output / "privacy_report.json");
  return report.is_object() && report.contains("provenance") &&
         report["provenance"].value("ledger_head", "") == ledger->head;
}

}  // namespace

nlohmann::json Resumption::to_json() const {
  return {{"checkpoint", checkpoint},      {"step", step},
          {"releases", releases},          {"attempts", attempts.to_json()},
          {"header", ledger.header},       {"outputs_whole", outputs_whole},
          {"steps_charged", steps_charged}};
}

Resumption Resumption::from_json(const nlohmann::json& json) {
  Resumption r;
  r.checkpoint = json.at("checkpoint").get<std::string>();
  r.step = json.at("step").get<int64_t>();
  r.releases = json.at("releases").get<int64_t>();
  r.attempts = dp::Attempts::from_json(json.at("attempts"));
  r.ledger.header = json.at("header");
  r.outputs_whole = json.at("outputs_whole").get<bool>();
  r.steps_charged = json.at("steps_charged").get<int64_t>();
  return r;
}

Resumption find_run(const Options& o) {
  const std::filesystem::path output(o.output);
  Resumption r;
  const auto refuse = [&](const std::string& rule) {
    throw std::invalid_argument("--resume: " + output.string() + ": " + rule);
  };
  if (!std::filesystem::is_directory(output)) refuse("it must be the folder of an earlier run, there is none");
  const auto ledger_path = output / "ledger.jsonl";
  const bool has_ledger = std::filesystem::exists(ledger_path);
  if (has_ledger == o.non_private) {
    refuse(o.non_private ? "it holds a run with privacy, which cannot go on with --non-private"
                         : "it holds no ledger.jsonl, so that nothing can be proven about what was spent");
  }
  const auto checkpoints = fsdp::list_checkpoints(output / "checkpoints");
  if (!checkpoints.empty()) {
    r.checkpoint = checkpoints.back().path.string();
    r.step = checkpoints.back().step;
  }
  if (o.non_private) {
    r.outputs_whole = outputs_whole(output, nullptr);
    return r;
  }

  r.ledger = accountant::read_ledger(ledger_path);
  r.releases = static_cast<int64_t>(r.ledger.entries.size());
  std::set<int64_t> charged;
  for (const auto& entry : r.ledger.entries) charged.insert(entry.step);
  r.steps_charged = static_cast<int64_t>(charged.size());
  r.attempts = dp::Attempts(r.ledger, 0);
  // Older checkpoints are witnesses as well: if the ledger does not know one of them, it was put back.
  for (const auto& checkpoint : checkpoints) {
    const auto mark = dp::ledger_mark_from_json(checkpoint.about.value("ledger", nlohmann::json()));
    try {
      r.attempts = dp::resume_attempts(r.ledger, mark, checkpoint.step);
    } catch (const std::invalid_argument& error) {
      refuse(checkpoint.path.filename().string() + ": " + error.what());
    }
  }
  // So is the file of metrics: a step is shown only after its release was in the ledger.
  for (const auto& line : metrics_lines(output / "metrics.jsonl")) {
    if (line.step > 0 && !charged.contains(line.step - 1)) {
      refuse("metrics.jsonl has " + std::to_string(line.step) +
             " steps, but the ledger does not hold the last one's "
             "release: it was cut or rewritten, so what was spent cannot be proven");
    }
  }
  r.outputs_whole = outputs_whole(output, &r.ledger);
  return r;
}

// ---------------------------------------------------------------------------------------------------------------
// The folder

KeptMetrics prepare_folder(const std::filesystem::path& output, int64_t step) {
  KeptMetrics kept;
  std::string text;
  const auto path = output / "metrics.jsonl";
  for (const auto& line : metrics_lines(path)) {
    if (line.step > step) break;
    text += line.text + '\n';
    kept.seconds = line.json.value("seconds", 0.0);
    kept.has_step = line.step == step;
    if (line.json.contains("eval_loss")) {
      kept.last_eval_loss = line.json["eval_loss"].get<double>();
      kept.last_eval_standard_error = line.json.value("eval_standard_error", 0.0);
      if (!kept.first_eval_loss) kept.first_eval_loss = kept.last_eval_loss;
    }
  }
  fsdp::write_durably(path, text);
  std::filesystem::remove(output / "privacy_report.json");
  std::filesystem::remove(output / "model" / "model.safetensors");
  return kept;
}

void add_resumption(nlohmann::json& facts, int64_t first, int64_t last, int64_t planned_steps) {
  facts["provenance"]["resumed"] =
      "after step " + std::to_string(first) +
      (first == 0 ? " (from the start, no checkpoint)" : " from this run's own checkpoint");
  if (last < planned_steps) {
    facts["population_and_steps"]["ended_early"] =
        "after step " + std::to_string(last) +
        ": steps redone after a crash were charged again, and further ones would "
        "have broken the promised epsilon";
  }
}

}  // namespace ghostshard::gpt2
