#include "examples/gpt2/checkpoint.h"

#include <array>
#include <map>
#include <set>
#include <stdexcept>

#include "fsdp/durable_file.h"
#include "fsdp/regular_file.h"
#include "fsdp/safetensors.h"

namespace ghostshard::gpt2 {
namespace {

constexpr const char* kPrefix = "transformer.";

constexpr uint64_t kMostBytesOfTokenizer = uint64_t{1} << 30;
constexpr std::array kTokenizerFiles = {"tokenizer.json", "tokenizer_config.json",   "vocab.json",
                                        "merges.txt",     "special_tokens_map.json", "added_tokens.json"};

// All tensors of a folder, by the model's own names.
class Weights {
 public:
  explicit Weights(const std::filesystem::path& folder) {
    const auto single = folder / "model.safetensors";
    const auto index = folder / "model.safetensors.index.json";
    std::set<std::string> files;
    if (std::filesystem::exists(single)) {
      files.insert("model.safetensors");
    } else if (std::filesystem::exists(index)) {
      const auto json = read_json(index);
      if (!json.contains("weight_map") || !json["weight_map"].is_object()) {
        throw std::invalid_argument(index.string() + " must have an object 'weight_map'");
      }
      for (const auto& [name, file] : json["weight_map"].items()) {
        if (!file.is_string()) {
          throw std::invalid_argument(index.string() + ": 'weight_map' must name a file for '" + name + "', got " +
                                      file.dump());
        }
        files.insert(file.get<std::string>());
      }
    } else {
      throw std::invalid_argument(folder.string() +
                                  " must contain model.safetensors (or model.safetensors.index.json)");
    }
    for (const auto& file : files) {
      opened_.push_back(std::make_unique<fsdp::SafetensorsFile>(folder / file));
      for (const auto& name : opened_.back()->names()) {
        // Old checkpoints carry the causal mask as a buffer.
        if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) continue;
        const bool known_root = name.starts_with(kPrefix) || name.starts_with("lm_head.");
        const std::string own_name = known_root ? name : kPrefix + name;
        if (!found_.try_emplace(own_name, opened_.back().get(), name).second) {
          throw std::invalid_argument(folder.string() + ": tensor '" + name + "' must be there once, '" +
                                      found_.at(own_name).second + "' is the same one");
        }
      }
    }
  }

  bool contains(const std::string& name) const { return found_.contains(name); }

  at::Tensor take(const std::string& name) {
    const auto place = found_.at(name);
    found_.erase(name);
    return place.first->tensor(place.second);
  }

  std::vector<std::string> left() const {
    std::vector<std::string> names;
    names.reserve(found_.size());
    for (const auto& [name, place] : found_) names.push_back(name);
    return names;
  }

 private:
  std::vector<std::unique_ptr<fsdp::SafetensorsFile>> opened_;
  std::map<std::string, std::pair<const fsdp::SafetensorsFile*, std::string>> found_;
};

}  // namespace

Folder open_folder(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path))
    throw std::invalid_argument("--model must be a folder, " + path.string() + " is none");
  Folder folder{.path = path, .config = {}, .original_config = read_json(path / "config.json")};
  folder.config = config_from_json(folder.original_config);
  for (const char* name : kTokenizerFiles) {  // copied at the end: a mistake must show before the run
    if (!std::filesystem::exists(path / name)) continue;
    const fsdp::RegularFile file(path / name);
    if (file.bytes() > kMostBytesOfTokenizer) {
      throw std::invalid_argument((path / name).string() + " must hold at most " +
                                  std::to_string(kMostBytesOfTokenizer) + " bytes, has " +
                                  std::to_string(file.bytes()));
    }
  }
  const Weights readable(path);  // their headers: what is no file of weights must not be hashed first
  return folder;
}

void load_weights(Gpt2& model, const Folder& folder) {
  Weights weights(folder.path);
  at::Tensor wte;
  for (const auto& parameter : model.parameters().parameters()) {
    const std::string& name = parameter->name();
    if (is_adapter(name)) continue;
    const bool copy_of_wte = name == "lm_head.weight" && !weights.contains(name) && wte.defined();
    if (!copy_of_wte && !weights.contains(name)) {
      throw std::invalid_argument(folder.path.string() + ": tensor '" + name + "' is missing");
    }
    const at::Tensor tensor = copy_of_wte ? wte : weights.take(name);
    if (tensor.sizes() != at::IntArrayRef(parameter->whole_shape())) {
      throw std::invalid_argument(folder.path.string() + ": tensor '" + name + "' must have shape " +
                                  c10::str(at::IntArrayRef(parameter->whole_shape())) + " by config.json, has " +
                                  c10::str(tensor.sizes()));
    }
    if (!at::isFloatingType(tensor.scalar_type())) {
      throw std::invalid_argument(folder.path.string() + ": tensor '" + name + "' must be floating point, is " +
                                  c10::toString(tensor.scalar_type()));
    }
    const at::Tensor values = tensor.to(at::kFloat);
    if (!at::isfinite(values).all().item<bool>()) {
      throw std::invalid_argument(folder.path.string() + ": tensor '" + name +
                                  "' must be finite in float32, has NaN, infinity or a larger number");
    }
    if (name == "transformer.wte.weight") wte = tensor;
    model.parameters().set_parameter(*parameter, values);
  }
  for (const std::string& name : weights.left()) {
    if (name == "lm_head.weight" && model.config().tie_word_embeddings) continue;  // a copy of wte by definition
    throw std::invalid_argument(folder.path.string() + ": tensor '" + name + "' does not belong to this model");
  }
}

void save_folder(Gpt2& model, const nlohmann::json& original_config, const std::filesystem::path& tokenizer_from,
                 const std::filesystem::path& path) {
  const bool writes = model.parameters().mesh().rank() == 0;
  std::vector<fsdp::NamedTensor> tensors;
  for (const auto& parameter : model.parameters().parameters()) {
    const std::string& name = parameter->name();
    if (is_adapter(name)) continue;
    constexpr std::string_view kWeight = ".weight";
    at::Tensor whole =
        name.ends_with(kWeight)
            ? merged_weight(model.parameters(), name.substr(0, name.size() - kWeight.size()), model.lora())
            : model.parameters().whole_parameter(*parameter);
    if (writes) tensors.push_back({name, std::move(whole)});
  }
  if (!writes) return;
  std::filesystem::create_directories(path);
  if (!tokenizer_from.empty()) {
    for (const char* file : kTokenizerFiles) {
      if (std::filesystem::exists(tokenizer_from / file)) {
        std::filesystem::copy_file(tokenizer_from / file, path / file,
                                   std::filesystem::copy_options::overwrite_existing);
      }
    }
  }
  fsdp::write_durably(path / "config.json", config_to_json(model.config(), original_config).dump(2) + '\n');
  nlohmann::json generation = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (original_config.contains(key)) generation[key] = original_config[key];
  }
  fsdp::write_durably(path / "generation_config.json", generation.dump(2) + '\n');
  // Last, so that a folder with weights is a whole folder.
  fsdp::write_safetensors(path / "model.safetensors", tensors, {{"format", "pt"}});
}

}  // namespace ghostshard::gpt2
