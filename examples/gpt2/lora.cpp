#include "examples/gpt2/lora.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "examples/gpt2/model.h"
#include "examples/gpt2/name_glob.h"
#include "fsdp/durable_file.h"
#include "fsdp/safetensors.h"

namespace ghostshard::gpt2 {
namespace {

constexpr const char* kDown = ".lora_A.weight";
constexpr const char* kUp = ".lora_B.weight";

// "transformer.h.0.attn.c_attn.weight" is the weight of a projection of the block "transformer.h.0"; norms, embeddings
// and the head are none.
std::optional<std::string> projection_of(const fsdp::ParameterSpec& parameter) {
  constexpr std::string_view kWeight = ".weight";
  if (parameter.shape.size() != 2 || !parameter.name.starts_with("transformer.h.")) return std::nullopt;
  if (!parameter.name.ends_with(kWeight)) return std::nullopt;
  return parameter.name.substr(0, parameter.name.size() - kWeight.size());
}

const fsdp::Parameter* find(const fsdp::ShardedModel& model, const std::string& name) {
  for (const auto& parameter : model.parameters()) {
    if (parameter->name() == name) return parameter.get();
  }
  return nullptr;
}

// A product of that rank can be any matrix already. Beyond it lie typing errors, whose sizes overflow.
void check_rank(int64_t rank, const fsdp::ParameterSpec& parameter) {
  const int64_t most = std::min(parameter.shape[0], parameter.shape[1]);
  if (rank <= most) return;
  throw std::invalid_argument("--lora-rank must be at most the smaller side of " + parameter.name + " (" +
                              std::to_string(most) + "), got " + std::to_string(rank));
}

}  // namespace

bool is_adapter(const std::string& parameter_name) {
  return parameter_name.ends_with(kDown) || parameter_name.ends_with(kUp);
}

void add_adapters(std::vector<fsdp::BlockSpec>& blocks, const LoraOptions& options) {
  if (!(options.rank >= 0)) {
    throw std::invalid_argument("--lora-rank must be >= 0, got " + std::to_string(options.rank));
  }
  if (!options.enabled()) return;
  if (!(options.alpha > 0 && std::isfinite(options.alpha))) {
    throw std::invalid_argument("--lora-alpha must be finite and > 0, got " + nlohmann::json(options.alpha).dump());
  }
  std::vector<bool> named(options.targets.size(), false);
  for (fsdp::BlockSpec& block : blocks) {
    std::vector<fsdp::ParameterSpec> adapters;
    for (fsdp::ParameterSpec& parameter : block.parameters) {
      parameter.trainable = false;
      const auto module = projection_of(parameter);
      if (!module) continue;
      const std::string in_block = module->substr(block.name.size() + 1);
      bool wanted = false;
      for (size_t i = 0; i < options.targets.size(); ++i) {
        if (!matches(options.targets[i], in_block) && !matches(options.targets[i], *module)) continue;
        named[i] = wanted = true;
      }
      if (!wanted) continue;
      check_rank(options.rank, parameter);
      // Conv1D's weight is [in, out].
      adapters.push_back({*module + kDown, {options.rank, parameter.shape[0]}});
      adapters.push_back({*module + kUp, {parameter.shape[1], options.rank}});
    }
    block.parameters.insert(block.parameters.end(), adapters.begin(), adapters.end());
  }
  for (size_t i = 0; i < named.size(); ++i) {
    if (named[i]) continue;
    throw std::invalid_argument(
        "--lora-targets must name projections (attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj), '" +
        options.targets[i] + "' names none");
  }
  if (named.empty()) throw std::invalid_argument("--lora-targets must name at least one projection, got none");
}

AdaptedLinear adapted_linear_use(const fsdp::ShardedModel& model, const std::string& module,
                                 const LoraOptions& options) {
  AdaptedLinear use;
  use.base = {.weight = &model.parameter(module + ".weight"),
              .bias = &model.parameter(module + ".bias"),
              .stored_transposed = true};
  use.down.weight = find(model, module + kDown);
  use.up.weight = find(model, module + kUp);
  if (use.down.weight != nullptr) use.scale = options.scale();
  return use;
}

at::Tensor adapted_linear(const AdaptedLinear& use, const at::Tensor& x, const dp::SegmentsPtr& segments,
                          const dp::RecorderPtr& recorder) {
  const at::Tensor y = dp::linear(use.base, x, segments, recorder);
  if (use.down.weight == nullptr) return y;
  // Scaled between the two, because the rows are narrow there.
  const at::Tensor narrow = dp::linear(use.down, x, segments, recorder) * use.scale;
  return y + dp::linear(use.up, narrow, segments, recorder);
}

void initialize_adapters(fsdp::ShardedModel& model, uint64_t seed) {
  // A stream of its own: the base model's fresh weights are the same with and without adapters.
  auto generator = at::detail::createCPUGenerator(seed ^ 0x4c6f5241ULL);
  for (const auto& parameter : model.parameters()) {
    if (!is_adapter(parameter->name())) continue;
    at::Tensor whole = at::zeros(parameter->shape(), at::kFloat);
    if (parameter->name().ends_with(kDown)) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(parameter->shape()[1]));
      whole.uniform_(-bound, bound, generator);
    }
    model.set_parameter(*parameter, whole);
  }
}

at::Tensor merged_weight(fsdp::ShardedModel& model, const std::string& module, const LoraOptions& options) {
  const at::Tensor weight = model.whole_parameter(model.parameter(module + ".weight"));
  const fsdp::Parameter* down = find(model, module + kDown);
  if (down == nullptr) return weight;
  const at::Tensor a = model.whole_parameter(*down).to(at::kDouble);
  const at::Tensor b = model.whole_parameter(model.parameter(module + kUp)).to(at::kDouble);
  return at::addmm(weight.to(at::kDouble), a.t(), b.t(), 1.0, options.scale()).to(at::kFloat);
}

void save_adapters(Gpt2& model, const std::string& base_model, const std::filesystem::path& path) {
  const LoraOptions& lora = model.lora();
  if (!lora.enabled()) return;
  fsdp::ShardedModel& parameters = model.parameters();
  const bool writes = parameters.mesh().rank() == 0;
  std::vector<fsdp::NamedTensor> tensors;
  nlohmann::json modules = nlohmann::json::array();
  for (const auto& parameter : parameters.parameters()) {
    const std::string& name = parameter->name();
    if (!is_adapter(name)) continue;
    at::Tensor whole = parameters.whole_parameter(*parameter);
    if (!writes) continue;
    tensors.push_back({"base_model.model." + name, std::move(whole)});
    if (name.ends_with(kDown)) modules.push_back(name.substr(0, name.size() - std::string_view(kDown).size()));
  }
  if (!writes) return;
  std::filesystem::create_directories(path);
  // Full module names: PEFT takes a name that equals one of these or ends in it.
  const nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base_model.empty() ? nlohmann::json() : nlohmann::json(base_model)},
      {"inference_mode", true},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", 0.0},
      {"target_modules", modules},
      {"fan_in_fan_out", true},  // Conv1D stores its weight [in, out]
      {"bias", "none"},
      {"init_lora_weights", true},
      {"use_rslora", false},
      {"use_dora", false},
      {"modules_to_save", nullptr},
  };
  fsdp::write_durably(path / "adapter_config.json", config.dump(2) + '\n');
  fsdp::write_safetensors(path / "adapter_model.safetensors", tensors, {{"format", "pt"}});
}

}  // namespace ghostshard::gpt2
