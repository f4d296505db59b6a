// Hugging Face's config.json of a GPT-2: the settings that change the computation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace ghostshard::gpt2 {

struct Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_inner = 3072;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  std::string activation = "gelu_new";
  bool tie_word_embeddings = true;

  int64_t head_size() const { return n_embd / n_head; }
};

// Throws std::invalid_argument naming the key, the rule and the value. A setting under which the model would compute
// otherwise than this one (scaled attention by layer, cross attention and others) is refused, never ignored.
Config config_from_json(const nlohmann::json& json);

// A file of the caller's as JSON. std::invalid_argument: path and rule.
nlohmann::json read_json(const std::filesystem::path& path);

// A config.json that transformers' GPT2LMHeadModel loads. Keys of `original` (may be empty) that this program does not
// interpret are kept.
nlohmann::json config_to_json(const Config& config, const nlohmann::json& original);

}  // namespace ghostshard::gpt2
