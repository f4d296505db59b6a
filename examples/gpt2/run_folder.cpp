#include "examples/gpt2/run_folder.h"

#include <c10/util/accumulate.h>

#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "examples/gpt2/parts.h"

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
  json released = {"the final model", "the epsilon and learning rate of every step"};
  if (options.clipping == "adaptive")
    released.push_back("the clip norm of every step, and the noised count it follows from");
  if (!options.eval_data.empty()) released.push_back("the loss on texts declared public, during and after training");
  if (options.sample_tokens)
    released.push_back("texts that continue a prompt declared public, during and after training");
  if (options.allow_nonprivate_metrics)
    released.push_back(
        "losses and batch sizes of the private data, times and memory of the steps on them "
        "(--allow-nonprivate-metrics): NOT covered");
  return {{"released", released}};
}

std::string starting_point(const Options& options) {
  return !options.model.empty() ? "the weights of the folder given as --model"
                                : "fresh random weights (--model-config)";
}

json not_covered(const Options& options, const std::string& unit) {
  json facts = {
      "the starting point: " + starting_point(options),
      options.public_note.empty() ? "public data used before: not stated by the run"
                                  : "public data used before: " + options.public_note,
      "how the texts were collected, cleaned, truncated and tokenized",
      "the number of " + unit + "s, treated as public",
      std::string("running time and memory use: standard error (progress, time left, peak memory) and the times of ") +
          "files are the operator's and are not to be shared"};
  for (const json& item : unit_facts(unit).not_covered) facts.push_back(item);
  return facts;
}

// Parts spell every number as a double, so that 8 and 8.0 bind alike: 24.0 steps are 24 to a reader.
std::string without_empty_fraction(const std::string& value) {
  const size_t digits = value.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string::npos && value.substr(digits) == ".0" ? value.substr(0, digits) : value;
}

// What was given and what holds by default. Places are left out, and so is what holds none.
json hyper_parameters(const Options& options) {
  json values = json::object();
  for (const dp::Part& part : parts_of_options(options)) {
    if (part.name.starts_with("--") && !part.value.empty())
      values[part.name.substr(2)] = without_empty_fraction(part.value);
  }
  return values;
}

// The nearest folder above that is there.
std::filesystem::path folder_above(const std::filesystem::path& output) {
  std::error_code ignored;
  auto parent = std::filesystem::absolute(output).parent_path();
  while (!std::filesystem::exists(parent, ignored) && parent != parent.root_path()) parent = parent.parent_path();
  return parent;
}

// No folder can be made there.
void refuse_links_to_nowhere(const std::filesystem::path& output) {
  std::error_code ignored;
  for (auto place = std::filesystem::absolute(output); place != place.root_path(); place = place.parent_path()) {
    if (!std::filesystem::is_symlink(place, ignored) || std::filesystem::exists(place, ignored)) continue;
    throw std::invalid_argument("--output " + output.string() + " cannot be used: " + place.string() +
                                " is a link to what is not there");
  }
}

constexpr uintmax_t kMebibyte = 1U << 20;
// What is needed is rounded up and what is there down: the two never read alike.
std::string whole_mebibytes(uintmax_t bytes) { return std::to_string(bytes / kMebibyte) + " MiB"; }

}  // namespace

void check_output_can_hold(const std::filesystem::path& output, const fsdp::ShardedModel& model,
                           const fsdp::OptimizerState& optimizer, int64_t checkpoints) {
  std::error_code unknown;
  const auto place = std::filesystem::exists(output, unknown) ? output : folder_above(output);
  if (::access(place.c_str(), W_OK | X_OK) != 0) {
    throw std::invalid_argument("--output must lie in a folder that may be written to, " + place.string() +
                                " may not: " + std::generic_category().message(errno));
  }
  constexpr uintmax_t kReportAndLedger = 256U << 10;  // of a short run
  uintmax_t of_model = 0, of_states = 0;
  for (const auto& parameter : model.parameters()) {
    const auto bytes = sizeof(float) * static_cast<uintmax_t>(c10::multiply_integers(parameter->whole_shape()));
    of_model += bytes;
    for (const std::string& kind : optimizer.kinds()) of_states += optimizer.keeps(kind, *parameter) ? bytes : 0;
  }
  const uintmax_t needed = kReportAndLedger + of_model + static_cast<uintmax_t>(checkpoints) * (of_model + of_states);
  const auto room = std::filesystem::space(place, unknown);
  if (unknown || room.available >= needed) return;
  throw std::invalid_argument("--output must lie on a disk with room for the trained model" +
                              (checkpoints > 0 ? " and " + std::to_string(checkpoints) + " checkpoint(s)" : "") + " (" +
                              whole_mebibytes(needed + kMebibyte - 1) + "), " + place.string() + " has " +
                              whole_mebibytes(room.available) + " free");
}

void check_output_is_new(const std::filesystem::path& output) {
  std::error_code ignored;
  const auto parent = folder_above(output);
  if (!std::filesystem::is_directory(parent, ignored)) {
    throw std::invalid_argument("--output must lie in a folder, " + parent.string() + " is a file");
  }
  std::error_code refused;  // a name that is too long, a link that leads to itself
  if (!std::filesystem::exists(output, refused)) {
    if (refused) throw std::invalid_argument("--output " + output.string() + " cannot be used: " + refused.message());
    refuse_links_to_nowhere(output);
    return;
  }
  if (!std::filesystem::is_directory(output)) {
    throw std::invalid_argument("--output must be a folder, " + output.string() + " is a file");
  }
  if (!std::filesystem::is_empty(output)) {
    throw std::invalid_argument("--output must be new or empty, " + output.string() +
                                " already holds a run or other files");
  }
}

nlohmann::json report_facts(const Options& options, const Inputs& in) {
  const std::string name = in.data->unit_of_privacy();
  const UnitFacts unit = unit_facts(name);
  json facts = {
      {"unit_of_privacy",
       {{"definition", unit.definition}, {"packing", unit.packing}, {"units_per_person", unit.per_person}}},
      {"claim_boundary", {{"covered", "all optimizer steps on --data"}, {"not_covered", not_covered(options, name)}}},
      {"released_outputs", released_outputs(options)},
      {"hyper_parameters", hyper_parameters(options)},
      {"mechanism",
       {{"compute_dtype", options.compute_dtype},
        {"gather_dtype", options.gather_dtype},
        {"master_dtype", options.master_dtype}}},
      {"provenance",
       {{"checkpoint_lineage", starting_point(options)},
        {"program", "ghostshard-finetune-gpt2 0.1.0"},
        {"code_commit", options.commit.empty() ? "not known to the program" : options.commit}}}};
  if (!options.tuning_note.empty()) facts["tuning"] = {{"how", options.tuning_note}};
  return facts;
}

}  // namespace ghostshard::gpt2
