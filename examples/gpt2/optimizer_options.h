// How released gradients become steps: what the flags say for all parameters, and --optimizer-groups for some.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace ghostshard::gpt2 {

// The values of --optimizer.
inline constexpr const char* kAdamW = "adamw";
inline constexpr const char* kEightBits = "adamw8bit";
inline constexpr const char* kSixteenBits = "adamw16bit";
inline constexpr const char* kMuon = "muon";
inline constexpr const char* kShampoo = "shampoo";
inline constexpr const char* kSoap = "soap";
inline constexpr const char* kSgd = "sgd";

inline std::vector<std::string> optimizer_names() {
  return {kAdamW, kEightBits, kSixteenBits, kMuon, kShampoo, kSoap, kSgd};
}

struct OptimizerOptions {
  std::string name = kAdamW;
  double weight_decay = 0.0;
  std::optional<double> momentum;  // default: 0 for sgd, 0.95 for muon
  bool muon_heads = false;
  std::optional<std::string> muon_noise;            // keep, drop or correct; default: keep
  std::optional<int64_t> tile_side, refresh_every;  // of shampoo and soap; defaults: fsdp/shampoo.h
  std::optional<double> factor_decay;
  std::optional<double> second_moment_floor;
  std::optional<std::vector<double>> betas;  // two, as the next of groups alone; defaults: fsdp/optimizer.h
  std::optional<double> epsilon;

  bool takes_tiles() const { return name == kShampoo || name == kSoap; }
  bool takes_matrices() const { return name == kMuon || takes_tiles(); }
};

// What messages call a value that the command line gives, or a group of a file.
struct ValueNames {
  std::string file, group;               // empty: the command line's
  std::map<std::string, int64_t> lines;  // of a group's keys

  // "optimizer" as "--optimizer" or "optimizer".
  std::string key(const std::string& key) const { return (file.empty() ? "--" : "") + key; }
  // The same at the beginning of a sentence, with its place: "groups.toml:4: group 'norms': optimizer".
  std::string at(const std::string& key) const;
};

// Some parameters and what they are trained by, as --optimizer-groups gives them.
struct OptimizerGroup {
  std::vector<std::string> match;  // globs over names of parameters
  OptimizerOptions optimizer;
  bool names_optimizer = false;  // false: it is the flags'
  double rate = 1.0;             // its learning rate is the run's times this
  ValueNames names;
  nlohmann::json said;  // what the file says, in one spelling
};

}  // namespace ghostshard::gpt2
