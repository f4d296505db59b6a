#include "examples/gpt2/config.h"

#include <limits>
#include <stdexcept>

#include "fsdp/regular_file.h"

namespace ghostshard::gpt2 {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& rule, const nlohmann::json& found) {
  throw std::invalid_argument("config.json: '" + key + "' " + rule + ", got " + found.dump());
}

// Far beyond any model, but a damaged file must not keep the program busy with it for hours.
constexpr int64_t kMostLayers = 100'000;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // token ids are int32
constexpr double kMostParameters = 1e15;

int64_t positive(const nlohmann::json& json, const char* key, int64_t fallback, int64_t most = kMost) {
  if (!json.contains(key) || json[key].is_null()) return fallback;
  const auto& value = json[key];
  if (!value.is_number_integer() || !(value.get<int64_t>() >= 1)) refuse(key, "must be a whole number >= 1", value);
  if (value.get<int64_t>() > most) refuse(key, "must be at most " + std::to_string(most), value);
  return value.get<int64_t>();
}

void check_size(const Config& config) {
  const auto width = static_cast<double>(config.n_embd);
  const double block = 4 * width * width + 2 * width * static_cast<double>(config.n_inner);
  const double parameters =
      width * static_cast<double>(config.vocab_size + config.n_positions) + block * static_cast<double>(config.n_layer);
  if (parameters > kMostParameters)
    throw std::invalid_argument("config.json: a model must have at most 1e15 parameters");
}

double positive_number(const nlohmann::json& json, const char* key, double fallback) {
  if (!json.contains(key)) return fallback;
  const auto& value = json[key];
  if (!value.is_number() || !(value.get<double>() > 0)) refuse(key, "must be a number > 0", value);
  return value.get<double>();
}

void must_be(const nlohmann::json& json, const char* key, const nlohmann::json& expected) {
  if (json.contains(key) && json[key] != expected)
    refuse(key, "must be " + expected.dump() + " for this model", json[key]);
}

}  // namespace

Config config_from_json(const nlohmann::json& json) {
  if (!json.is_object()) throw std::invalid_argument("config.json: must be a JSON object");
  // Any other object, a private text for one, would be a model of GPT-2's usual size, and be written beside it.
  const auto kind = json.find("model_type");
  if (kind == json.end()) throw std::invalid_argument("config.json: 'model_type' must be \"gpt2\", it is missing");
  if (*kind != "gpt2") refuse("model_type", "must be \"gpt2\"", *kind);
  must_be(json, "scale_attn_weights", true);
  must_be(json, "scale_attn_by_inverse_layer_idx", false);
  must_be(json, "add_cross_attention", false);
  Config config;
  config.vocab_size = positive(json, "vocab_size", config.vocab_size);
  config.n_positions = positive(json, "n_positions", positive(json, "n_ctx", config.n_positions));
  config.n_embd = positive(json, "n_embd", config.n_embd);
  config.n_layer = positive(json, "n_layer", config.n_layer, kMostLayers);
  config.n_head = positive(json, "n_head", config.n_head);
  config.n_inner = positive(json, "n_inner", 4 * config.n_embd);
  config.layer_norm_epsilon = positive_number(json, "layer_norm_epsilon", config.layer_norm_epsilon);
  config.initializer_range = positive_number(json, "initializer_range", config.initializer_range);
  if (json.contains("activation_function")) {
    const auto& name = json["activation_function"];
    if (name != "gelu_new" && name != "gelu_pytorch_tanh" && name != "gelu" && name != "relu") {
      refuse("activation_function", "must be one of gelu_new, gelu_pytorch_tanh, gelu, relu", name);
    }
    config.activation = name.get<std::string>();
  }
  if (json.contains("tie_word_embeddings")) {
    const auto& tied = json["tie_word_embeddings"];
    if (!tied.is_boolean()) refuse("tie_word_embeddings", "must be true or false", tied);
    config.tie_word_embeddings = tied.get<bool>();
  }
  if (config.n_embd % config.n_head != 0) {
    refuse("n_embd", "must be a multiple of n_head (" + std::to_string(config.n_head) + ")", config.n_embd);
  }
  check_size(config);
  return config;
}

nlohmann::json read_json(const std::filesystem::path& path) {
  auto json = nlohmann::json::parse(fsdp::read_text(path), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw std::invalid_argument(path.string() + " is not valid JSON");
  return json;
}

nlohmann::json config_to_json(const Config& config, const nlohmann::json& original) {
  nlohmann::json json = original.is_object() ? original : nlohmann::json::object();
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["vocab_size"] = config.vocab_size;
  json["n_positions"] = config.n_positions;
  json["n_embd"] = config.n_embd;
  json["n_layer"] = config.n_layer;
  json["n_head"] = config.n_head;
  json["n_inner"] = config.n_inner == 4 * config.n_embd ? nlohmann::json(nullptr) : nlohmann::json(config.n_inner);
  json["layer_norm_epsilon"] = config.layer_norm_epsilon;
  json["initializer_range"] = config.initializer_range;
  json["activation_function"] = config.activation;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  // The names of this key in newer and older transformers: saved weights are float32, whatever was read.
  json["dtype"] = "float32";
  json.erase("torch_dtype");
  return json;
}

}  // namespace ghostshard::gpt2
