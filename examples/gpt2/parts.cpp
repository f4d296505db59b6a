#include "examples/gpt2/parts.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>

#include "dp/run/digest.h"

namespace ghostshard::gpt2 {
namespace {

using Binds = dp::Part::Binds;

// Each rank's own: its place in the file system and its device. (The key file is read by rank 0 alone.)
constexpr std::array kOfEachRank = {"config", "help",         "version",        "output",
                                    "data",   "eval-data",    "noise-key-file", "budget-register",
                                    "model",  "model-config", "device",         "optimizer-groups"};

// May change when a run is resumed: places, pace, progress, and the numbers that the plan itself compares exactly.
constexpr std::array kFreeToChange = {"resume",
                                      "checkpoint-every",
                                      "keep-checkpoints",
                                      "timeout",
                                      "microbatch",
                                      "mesh",
                                      "offload-optimizer",
                                      "offload-noise",
                                      "memory-budget",
                                      "explain-plan",
                                      "activation-checkpointing",
                                      "eval-every",
                                      "sample-every",
                                      "generate-tokens",
                                      "max-new-tokens",
                                      "temperature",
                                      "top-k",
                                      "steps",
                                      "epochs",
                                      "target-epsilon",
                                      "noise-multiplier",
                                      "delta",
                                      "budget-limit",
                                      "epsilon-limit"};

constexpr const char* kTexts = "the texts in --data";

template <size_t N>
bool is_among(const std::array<const char*, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "1e-3" is 0.001.
std::string one_spelling(const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  return value.empty() || *end != '\0' ? value : nlohmann::json(number).dump();
}

std::string digest_of_folder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().ends_with(".safetensors")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  dp::Digest digest;
  for (const auto& file : files) {
    digest.add(file.filename().string());
    digest.add_file(file);
  }
  return digest.text();
}

}  // namespace

std::vector<dp::Part> parts_of_options(const Options& o) {
  std::vector<dp::Part> parts;
  for (const auto& [name, value] : o.given) {
    if (is_among(kOfEachRank, name)) continue;
    parts.push_back({"--" + name, one_spelling(value), is_among(kFreeToChange, name) ? Binds::kRanks : Binds::kRun});
  }
  // The report lists what is released: a loss on public texts, or none.
  parts.push_back({"--eval-data", o.eval_data.empty() ? "" : "given", Binds::kRun});
  nlohmann::json groups = nlohmann::json::array();
  for (const OptimizerGroup& group : o.optimizer_groups) groups.push_back(group.said);
  parts.push_back({"--optimizer-groups", groups.empty() ? "" : groups.dump(), Binds::kRun});
  return parts;
}

std::vector<dp::Part> parts_of_inputs(const Options& o, const Inputs& in) {
  std::vector<dp::Part> parts = {
      {kTexts, dp::digest_of_file(o.data), Binds::kRunInSecret},
      {"the model's config.json", dp::digest_of(in.original_config.dump()), Binds::kRun},
  };
  if (in.folder) parts.push_back({"the weights in --model", digest_of_folder(o.model), Binds::kRun});
  if (in.eval) parts.push_back({"the texts in --eval-data", dp::digest_of_file(o.eval_data)});
  return parts;
}

std::string digest_of_texts(const std::vector<dp::Part>& parts) {
  const auto found = std::find_if(parts.begin(), parts.end(), [](const dp::Part& part) { return part.name == kTexts; });
  if (found == parts.end()) throw std::logic_error("the texts have been read");
  return found->value;
}

}  // namespace ghostshard::gpt2
