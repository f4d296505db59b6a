// Manifests and folders. fsdp/checkpoint/tensors.cpp reads and writes the ranks' files.
#include "fsdp/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>

#include "fsdp/checkpoint/files.h"
#include "fsdp/regular_file.h"

namespace ghostshard::fsdp {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr const char* kPartialMark = ".partial";

// The step in a complete checkpoint's folder name.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? std::optional(step) : std::nullopt;
}

}  // namespace

Checkpoint read_checkpoint(const std::filesystem::path& path) {
  const std::filesystem::path manifest = path / kManifestName;
  const auto reject = [&](const std::string& rule) -> std::invalid_argument {
    return std::invalid_argument("checkpoint " + manifest.string() + ": " + rule);
  };
  const std::string text = [&] {
    try {
      return read_text(manifest, kMostBytesOfManifest);
    } catch (const std::invalid_argument& error) {
      throw reject(std::string("the manifest must be there and readable: ") + error.what());
    }
  }();
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw reject("it must be a JSON object");
  const auto schema = json.find("schema");
  if (schema == json.end() || *schema != kCheckpointSchema) {
    throw reject(std::string("schema must be ") + kCheckpointSchema + ", got " +
                 (schema == json.end() ? "none" : schema->dump()));
  }
  try {
    Checkpoint checkpoint{.path = path,
                          .step = json.at("step").get<int64_t>(),
                          .world_size = json.at("world_size").get<int64_t>(),
                          .optimizer = json.at("optimizer").at("rule").get<std::string>(),
                          .optimizer_steps = json.at("optimizer").at("steps").get<int64_t>(),
                          .files = {},
                          .about = json.at("about")};
    for (const auto& file : json.at("files")) {
      checkpoint.files.push_back(
          {file.at("name").get<std::string>(), file.at("bytes").get<int64_t>(), file.at("sha256").get<std::string>()});
    }
    if (!(checkpoint.world_size >= 1 && checkpoint.files.size() == static_cast<size_t>(checkpoint.world_size))) {
      throw reject("there must be one file for each of its ranks, got " + std::to_string(checkpoint.files.size()) +
                   " for " + std::to_string(checkpoint.world_size));
    }
    for (int64_t rank = 0; rank < checkpoint.world_size; ++rank) {
      const std::string& name = checkpoint.files[static_cast<size_t>(rank)].name;
      const std::string expected = rank_file_name(rank, checkpoint.world_size);
      if (name != expected) throw reject("file " + std::to_string(rank) + " must be " + expected + ", got " + name);
    }
    return checkpoint;
  } catch (const nlohmann::json::exception& error) {
    throw reject(std::string("a field is missing or of the wrong type: ") + error.what());
  }
}

std::vector<Checkpoint> list_checkpoints(const std::filesystem::path& folder) {
  std::vector<Checkpoint> found;
  if (!std::filesystem::is_directory(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto step = step_of(entry.path().filename().string());
    if (!step) continue;
    found.push_back(read_checkpoint(entry.path()));
    if (found.back().step != *step) {
      throw std::invalid_argument("checkpoint " + entry.path().string() +
                                  ": the manifest must be of this step, is of " + std::to_string(found.back().step));
    }
  }
  std::sort(found.begin(), found.end(), [](const Checkpoint& a, const Checkpoint& b) { return a.step < b.step; });
  return found;
}

void prune_checkpoints(const std::filesystem::path& folder, int64_t keep) {
  if (!std::filesystem::is_directory(folder)) return;
  std::vector<std::pair<int64_t, std::filesystem::path>> complete;
  std::vector<std::filesystem::path> unwanted;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (const auto step = step_of(name))
      complete.emplace_back(*step, entry.path());
    else if (name.starts_with(kStepPrefix) && name.find(kPartialMark) != std::string::npos)
      unwanted.push_back(entry);
  }
  std::sort(complete.begin(), complete.end());
  for (size_t i = 0; i + static_cast<size_t>(std::max<int64_t>(keep, 0)) < complete.size(); ++i) {
    // Renamed first: half of a removed checkpoint must not look like a checkpoint.
    std::filesystem::path doomed = complete[i].second;
    doomed += kPartialMark;
    std::filesystem::rename(complete[i].second, doomed);
    unwanted.push_back(doomed);
  }
  for (const auto& path : unwanted) std::filesystem::remove_all(path);
}

}  // namespace ghostshard::fsdp
