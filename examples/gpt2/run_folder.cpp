#include "examples/gpt2/run_folder.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ghostshard::gpt2 {
namespace {

using nlohmann::json;

// The privacy unit as the report describes it.
struct UnitFacts {
  json definition, packing = "each unit is its own sequence; units never share one";
  json per_person = "not limited by the code: a person who contributed k texts is protected k times less";
  json not_covered = json::array();
};

UnitFacts unit_facts(const std::string& unit) {
  UnitFacts facts{.definition = unit};
  if (unit != "text") {
    facts.packing = "each text of a unit is its own sequence: texts do not see each other, and units share none";
    facts.per_person = "not known to the code";
  }
  if (unit == "user") {
    facts.definition =
        "user: all texts that the prepared file keeps of one user; a unit's loss is the mean over its tokens";
    facts.per_person = 1;
    facts.not_covered.push_back("a person who wrote under several user names: each name is a user");
  }
  return facts;
}

json released_outputs(const Options& options) {
  json released = {"the final model", "the epsilon, rate and time of every step"};
  if (!options.eval_data.empty()) released.push_back("the loss on texts declared public, during and after training");
  if (options.allow_nonprivate_metrics)
    released.push_back("losses and batch sizes of the private data (--allow-nonprivate-metrics): NOT covered");
  return {{"released", released}, {"nonprivate_metrics", options.allow_nonprivate_metrics}};
}

std::string starting_point(const Options& options) {
  return !options.model.empty() ? "the weights of the folder given as --model"
                                : "fresh random weights (--model-config)";
}

json not_covered(const Options& options, const std::string& unit) {
  json facts = {"the starting point: " + starting_point(options),
                options.public_note.empty() ? "public data used before: not stated by the run"
                                            : "public data used before: " + options.public_note,
                "how the texts were collected, cleaned, truncated and tokenized",
                "the number of " + unit + "s, treated as public", "running time and memory use as side channels"};
  for (const json& item : unit_facts(unit).not_covered) facts.push_back(item);
  return facts;
}

}  // namespace

void check_output_is_new(const std::filesystem::path& output) {
  std::error_code ignored;
  auto parent = std::filesystem::absolute(output).parent_path();
  while (!std::filesystem::exists(parent, ignored) && parent != parent.root_path()) parent = parent.parent_path();
  if (!std::filesystem::is_directory(parent, ignored)) {
    throw std::invalid_argument("--output must lie in a folder, " + parent.string() + " is a file");
  }
  if (!std::filesystem::exists(output, ignored)) return;
  if (!std::filesystem::is_directory(output)) {
    throw std::invalid_argument("--output must be a folder, " + output.string() + " is a file");
  }
  if (!std::filesystem::is_empty(output)) {
    throw std::invalid_argument("--output must be new or empty, " + output.string() +
                                " already holds a run or other files");
  }
}

MetricsFile::MetricsFile(const std::filesystem::path& path, bool append)
    : path_(path), stream_(path, append ? std::ios::app : std::ios::out) {
  if (!stream_) throw std::runtime_error(path.string() + " cannot be written");
}

void MetricsFile::write(const MetricsLine& line) {
  nlohmann::ordered_json fields = {{"step", line.step}, {"seconds", line.seconds}};
  const auto put = [&](const char* key, const auto& value) {
    if (value) fields[key] = *value;
  };
  put("tokens_per_second", line.tokens_per_second);
  put("epsilon", line.epsilon);
  fields["learning_rate"] = line.learning_rate;
  put("eval_loss", line.eval_loss);
  put("eval_standard_error", line.eval_standard_error);
  put("private_loss", line.private_loss);
  put("private_batch", line.private_batch);
  stream_ << fields.dump() << '\n' << std::flush;
  if (!stream_) throw std::runtime_error(path_.string() + " could not be written (is the disk full?)");
}

nlohmann::json report_facts(const Options& options, const dp::DpPlan& plan, const dp::RunKey& key, int64_t world_size,
                            int64_t trainable_parameters) {
  const UnitFacts unit = unit_facts(plan.config().unit_of_privacy);
  return {
      {"trust_model",
       {{"model", "central"},
        {"trusted_parties", "every rank, its memory and the links between ranks; each rank holds the noise key"},
        {"who_sees_what",
         "outsiders see what is listed under released outputs; no sum leaves the mechanism without noise"}}},
      {"unit_of_privacy",
       {{"definition", unit.definition}, {"packing", unit.packing}, {"units_per_person", unit.per_person}}},
      {"claim_boundary",
       {{"covered", "all optimizer steps on --data"},
        {"not_covered", not_covered(options, plan.config().unit_of_privacy)}}},
      {"released_outputs", released_outputs(options)},
      {"tuning",
       {{"included", false}, {"number_of_runs", "not known to the code: other runs on the same data are not counted"}}},
      {"sampler", {{"executed", "poisson"}, {"coins", "64-bit, ChaCha20 (RFC 8439), one per unit and step"}}},
      {"mechanism",
       {{"clipping_style", dp::to_string(plan.config().clipping)},
        {"normaliser", "the fixed expected batch, a public constant"},
        {"microbatching", "clipped sums are added in float32; how a batch is cut does not change the sensitivity"},
        {"trainable_parameters", trainable_parameters},
        {"compute_dtype", options.compute_dtype}}},
      {"noise_source",
       {{"generator", "ChaCha20 (RFC 8439) keyed per step by HMAC-SHA256; Box-Muller with 64-bit radius, float32"},
        {"key_custody", key.origin() == "key file" ? "a file of the operator"
                                                   : "drawn by the operating system, in memory only, never stored"},
        {"dtype", "float32"},
        {"floating_point_caveat",
         "noise and sums are float32 numbers, not reals; a unit's own rounding is counted in its norm; in a batch of " +
             std::to_string(plan.config().expected_batch) +
             " units one of them can move the sum by at most the clip norm times 1 + " +
             json(dp::DpPlan::rounding_slack(plan.config().expected_batch)).dump() +
             ", because the others' roundings may turn; that is a proven worst case, not counted in epsilon"},
        {"placement",
         "added by each slice's owner (of the first replica) before the reduction, once per logical batch"}}},
      {"provenance",
       {{"checkpoint_lineage", starting_point(options)},
        {"ranks", world_size},
        {"program", "ghostshard-finetune-gpt2 0.1.0"}}},
  };
}

}  // namespace ghostshard::gpt2
