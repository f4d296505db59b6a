#include "examples/gpt2/generate.h"

#include <ATen/CPUGeneratorImpl.h>

#include <charconv>
#include <iostream>
#include <stdexcept>
#include <string>

#include "examples/gpt2/checkpoint.h"
#include "fsdp/agree.h"

namespace ghostshard::gpt2 {

std::vector<int64_t> generate(Gpt2& model, std::span<const int64_t> prompt, const GenerationOptions& options) {
  if (prompt.empty()) throw std::invalid_argument("the prompt must hold at least one token");
  fsdp::Mesh& mesh = model.parameters().mesh();
  auto random = at::detail::createCPUGenerator(options.seed);
  std::vector<int64_t> text(prompt.begin(), prompt.end());
  const auto limit = static_cast<size_t>(model.config().n_positions);
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const std::span<const int64_t> context = std::span(text).last(std::min(limit, text.size()));
    at::Tensor scores = model.logits(batch_of_rows(context))[-1].cpu();
    int64_t next = 0;
    if (options.temperature == 0) {
      next = scores.argmax().item<int64_t>();
    } else {
      scores = scores / options.temperature;
      if (options.top_k > 0 && options.top_k < scores.size(0)) {
        const at::Tensor least = std::get<0>(scores.topk(options.top_k)).min();
        scores = scores.masked_fill(scores < least, -std::numeric_limits<float>::infinity());
      }
      next = at::multinomial(scores.softmax(0), 1, false, random).item<int64_t>();
    }
    // How many collectives follow depends on it, and another machine may round another way.
    if (mesh.world_size() > 1) next = std::stoll(fsdp::broadcast_text(mesh, std::to_string(next)));
    if (next == options.end_token) break;
    text.push_back(next);
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

GenerationOptions generation_options(const Options& o, const nlohmann::json& config) {
  GenerationOptions how{
      .max_new_tokens = o.max_new_tokens, .temperature = o.temperature, .top_k = o.top_k, .seed = o.seed};
  const auto end = config.value("eos_token_id", nlohmann::json());
  if (end.is_number_integer()) how.end_token = end.get<int64_t>();
  return how;
}

std::vector<int64_t> parse_token_ids(const std::string& text, int64_t vocab_size) {
  std::vector<int64_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    int64_t id = -1;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && *next != ',') || (next != end && next + 1 == end)) {
      throw std::invalid_argument("token ids must be whole numbers separated by commas, got '" + text + "'");
    }
    if (!(id >= 0 && id < vocab_size)) {
      throw std::invalid_argument("token ids must lie in [0, " + std::to_string(vocab_size) + "), got " +
                                  std::to_string(id));
    }
    ids.push_back(id);
    at = next == end ? end : next + 1;
  }
  if (ids.empty()) throw std::invalid_argument("token ids must hold at least one number, got ''");
  return ids;
}

void generate_text(const Options& o) {
  const Folder folder = open_folder(o.model);
  const auto prompt = parse_token_ids(*o.generate_tokens, folder.config.vocab_size);
  const auto mesh = fsdp::Mesh::single();
  Gpt2 model(*mesh, folder.config, {});
  load_weights(model, folder);
  const GenerationOptions how = generation_options(o, folder.original_config);
  std::cout << "tokens: ";
  const char* separator = "";
  for (const int64_t id : generate(model, prompt, how)) {
    std::cout << separator << id;
    separator = ",";
  }
  std::cout << '\n';
}

}  // namespace ghostshard::gpt2
