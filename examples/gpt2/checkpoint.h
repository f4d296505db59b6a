// GPT-2 in Hugging Face's folder format: config.json and model.safetensors (or its sharded index), both ways.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "examples/gpt2/model.h"

namespace ghostshard::gpt2 {

// A model's folder without its weights: config.json as read, and its path.
struct Folder {
  std::filesystem::path path;
  Config config;
  nlohmann::json original_config;
};

// Reads and checks config.json. std::invalid_argument: path and rule.
Folder open_folder(const std::filesystem::path& path);

// Fills the model's shards from the folder's safetensors; names with or without the "transformer." prefix. With
// an untied head and no lm_head.weight in the folder (a tied checkpoint), the head starts as a copy of wte. A folder
// has no adapters: they stay as they are. std::invalid_argument naming file and tensor: missing, wrong shape, wrong
// dtype, unknown tensors. A collective.
void load_weights(Gpt2& model, const Folder& folder);

// Writes config.json, generation_config.json, model.safetensors (adapters merged into their weights) and copies of the
// tokenizer's files found in `tokenizer_from` (may be empty) to `path`, complete or not at all. A collective; rank 0
// writes.
void save_folder(Gpt2& model, const nlohmann::json& original_config, const std::filesystem::path& tokenizer_from,
                 const std::filesystem::path& path);

}  // namespace ghostshard::gpt2
