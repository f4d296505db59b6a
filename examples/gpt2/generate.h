// Sampling from a GPT-2, token ids in and out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/gpt2/model.h"
#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

struct GenerationOptions {
  int64_t max_new_tokens = 64;
  double temperature = 0.8;  // 0: the likeliest token
  int64_t top_k = 40;        // 0: all
  uint64_t seed = 0;
  int64_t end_token = -1;  // stops there; -1: never
};

// What the options ask for, and the end token of the model's config.json.
GenerationOptions generation_options(const Options& options, const nlohmann::json& config);

// The new tokens, the end token not among them. The context is cut to the model's last n_positions tokens. A
// collective.
std::vector<int64_t> generate(Gpt2& model, std::span<const int64_t> prompt, const GenerationOptions& options);

// "464,3290" → {464, 3290}; std::invalid_argument for anything else or a token outside [0, vocab_size).
std::vector<int64_t> parse_token_ids(const std::string& text, int64_t vocab_size);

// --generate-tokens in one process: prints "tokens: " and the new ids.
void generate_text(const Options& options);

}  // namespace ghostshard::gpt2
