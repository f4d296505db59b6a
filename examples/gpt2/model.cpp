#include "examples/gpt2/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "dp/recording/tensor_parallel.h"

namespace ghostshard::gpt2 {
namespace {

std::string block_prefix(int64_t layer) { return "transformer.h." + std::to_string(layer) + "."; }

std::vector<fsdp::BlockSpec> all_blocks(const Config& c, const std::vector<std::string>& freeze,
                                        const LoraOptions& lora) {
  const int64_t d = c.n_embd;
  std::vector<fsdp::BlockSpec> blocks;
  blocks.push_back(
      {.name = "embeddings",
       .parameters = {{"transformer.wte.weight", {c.vocab_size, d}}, {"transformer.wpe.weight", {c.n_positions, d}}},
       .residency = fsdp::Residency::kKeep});
  const auto qkv = dp::column_split(/*stored_transposed=*/true, /*sections=*/3);
  const auto fc = dp::column_split(/*stored_transposed=*/true);
  const auto projection = dp::row_split(/*stored_transposed=*/true);
  for (int64_t layer = 0; layer < c.n_layer; ++layer) {
    const std::string h = block_prefix(layer);
    blocks.push_back({.name = h.substr(0, h.size() - 1),
                      .parameters = {{h + "ln_1.weight", {d}},
                                     {h + "ln_1.bias", {d}},
                                     {h + "attn.c_attn.weight", {d, 3 * d}, true, qkv.weight},
                                     {h + "attn.c_attn.bias", {3 * d}, true, qkv.bias},
                                     {h + "attn.c_proj.weight", {d, d}, true, projection.weight},
                                     {h + "attn.c_proj.bias", {d}},
                                     {h + "ln_2.weight", {d}},
                                     {h + "ln_2.bias", {d}},
                                     {h + "mlp.c_fc.weight", {d, c.n_inner}, true, fc.weight},
                                     {h + "mlp.c_fc.bias", {c.n_inner}, true, fc.bias},
                                     {h + "mlp.c_proj.weight", {c.n_inner, d}, true, projection.weight},
                                     {h + "mlp.c_proj.bias", {d}}},
                      .residency = fsdp::Residency::kRegather});
  }
  blocks.push_back({.name = "end",
                    .parameters = {{"transformer.ln_f.weight", {d}}, {"transformer.ln_f.bias", {d}}},
                    .residency = fsdp::Residency::kKeep});
  if (!c.tie_word_embeddings) blocks.back().parameters.push_back({"lm_head.weight", {c.vocab_size, d}});

  add_adapters(blocks, lora);
  for (const std::string& pattern : freeze) {
    bool matched = false;
    for (auto& block : blocks) {
      for (auto& parameter : block.parameters) {
        if (::fnmatch(pattern.c_str(), parameter.name.c_str(), 0) != 0) continue;
        parameter.trainable = false;
        matched = true;
      }
    }
    if (!matched)
      throw std::invalid_argument("--freeze must match at least one parameter, '" + pattern + "' matches none");
  }
  return blocks;
}

fsdp::Mesh& checked(fsdp::Mesh& mesh, const Config& config, const ModelOptions& options) {
  check_mesh(mesh, config, options);
  return mesh;
}

}  // namespace

void check_mesh(const fsdp::Mesh& mesh, const Config& c, const ModelOptions& options) {
  const int64_t ranks = mesh.shape().model;
  const auto whole_layers_only = [&](bool used, const char* what) {
    if (ranks == 1 || !used) return;
    throw std::invalid_argument(std::string("a mesh with model ranks takes ") + what + ", got " +
                                std::to_string(ranks) + " model ranks");
  };
  whole_layers_only(options.lora.enabled() || options.compute_dtype != at::kFloat, "neither adapters nor bfloat16");
  whole_layers_only(options.gather_code != nullptr, "no weights that travel in codes");
  const auto must_divide = [&](const char* key, int64_t value) {
    if (value % ranks == 0) return;
    throw std::invalid_argument("on a mesh with " + std::to_string(ranks) + " model ranks " + key +
                                " must be a multiple of " + std::to_string(ranks) + ", got " + std::to_string(value));
  };
  must_divide("n_head", c.n_head);
  must_divide("n_inner", c.n_inner);
}

std::vector<fsdp::BlockSpec> block_specs(const Config& config, const std::vector<std::string>& freeze,
                                         const ModelOptions& options) {
  auto blocks = all_blocks(config, freeze, options.lora);
  for (size_t u = 0; u < std::min(blocks.size(), options.residency.size()); ++u) {
    blocks[u].residency = options.residency[u];
  }
  for (fsdp::BlockSpec& block : blocks) {
    for (fsdp::ParameterSpec& spec : block.parameters) {
      if (options.granule) spec.granule = options.granule(spec);
    }
  }
  return blocks;
}

Gpt2::Gpt2(fsdp::Mesh& mesh, const Config& config, const std::vector<std::string>& freeze, const ModelOptions& options)
    : config_(config),
      options_(options),
      model_(std::make_unique<fsdp::ShardedModel>(checked(mesh, config, options), block_specs(config, freeze, options),
                                                  options.compute_dtype, options.gather_code,
                                                  options.weight_rounding)) {
  if (model_->trainable_parameter_count() == 0) {
    throw std::invalid_argument("at least one parameter must stay trainable, --freeze froze all of them");
  }
  const auto at = [&](const std::string& name) { return &model_->parameter(name); };
  const auto norm = [&](const std::string& name) {
    return dp::LayerNormUse{.scale = at(name + ".weight"), .shift = at(name + ".bias")};
  };
  const auto conv1d = [&](const std::string& name) { return adapted_linear_use(*model_, name, options_.lora); };
  for (int64_t layer = 0; layer < config.n_layer; ++layer) {
    const std::string h = block_prefix(layer);
    blocks_.push_back({.ln_1 = norm(h + "ln_1"),
                       .ln_2 = norm(h + "ln_2"),
                       .attention_in = conv1d(h + "attn.c_attn"),
                       .attention_out = conv1d(h + "attn.c_proj"),
                       .mlp_in = conv1d(h + "mlp.c_fc"),
                       .mlp_out = conv1d(h + "mlp.c_proj")});
  }
  ln_f_ = norm("transformer.ln_f");
  wte_ = at("transformer.wte.weight");
  wpe_ = at("transformer.wpe.weight");
  head_.weight = config.tie_word_embeddings ? wte_ : at("lm_head.weight");
}

std::vector<fsdp::Lease> Gpt2::resident() {
  std::vector<fsdp::Lease> leases;
  leases.reserve(2);
  leases.emplace_back(*model_, 0);
  leases.emplace_back(*model_, config_.n_layer + 1);
  return leases;
}

at::Tensor Gpt2::activation(const at::Tensor& x) const {
  if (config_.activation == "relu") return at::relu(x);
  return at::gelu(x, config_.activation == "gelu" ? "none" : "tanh");
}

at::Tensor Gpt2::block(const Block& block, const at::Tensor& x, const dp::SegmentsPtr& segments,
                       const AttentionPlan& attention, const dp::RecorderPtr& recorder) const {
  const double eps = config_.layer_norm_epsilon;
  fsdp::Mesh& mesh = model_->mesh();
  const auto into = [&](const AdaptedLinear& use, const at::Tensor& rows) {
    if (mesh.shape().model == 1) return adapted_linear(use, rows, segments, recorder);
    return dp::column_split_linear(mesh, use.base, rows, segments, recorder);
  };
  const auto out_of = [&](const AdaptedLinear& use, const at::Tensor& rows) {
    if (mesh.shape().model == 1) return adapted_linear(use, rows, segments, recorder);
    return dp::row_split_linear(mesh, use.base, rows, segments, recorder);
  };
  const int64_t heads = config_.n_head / mesh.shape().model;  // this rank's
  const at::Tensor qkv = into(block.attention_in, dp::layer_norm(block.ln_1, x, eps, segments, recorder));
  const at::Tensor attended = x + out_of(block.attention_out, attention.attend(qkv, heads));
  const at::Tensor inner = into(block.mlp_in, dp::layer_norm(block.ln_2, attended, eps, segments, recorder));
  return attended + out_of(block.mlp_out, activation(inner));
}

at::Tensor Gpt2::hidden(const TokenBatch& batch, const dp::RecorderPtr& recorder) {
  const auto attention =
      std::make_shared<const AttentionPlan>(batch.documents ? *batch.documents : *batch.segments, model_->device());
  at::Tensor x = dp::embedding(*wte_, batch.ids, batch.segments, recorder) +
                 dp::embedding(*wpe_, batch.positions, batch.segments, recorder);
  for (int64_t layer = 0; layer < config_.n_layer; ++layer) {
    const int64_t next = layer + 1 < config_.n_layer ? layer + 2 : -1;
    const int64_t previous = layer > 0 ? layer : -1;
    // By value: a block that is recomputed runs again in backward.
    const auto body = [this, layer, attention, recorder, units = batch.segments](const at::Tensor& input) {
      return block(blocks_[static_cast<size_t>(layer)], input, units, *attention, recorder);
    };
    x = fsdp::run_block(*model_, layer + 1, next, previous, x, body,
                        options_.activation_checkpointing ? fsdp::Activations::kRecompute : fsdp::Activations::kStore);
  }
  return x;
}

at::Tensor Gpt2::row_losses(const TokenBatch& from_anywhere, const dp::RecorderPtr& recorder) {
  const TokenBatch batch = from_anywhere.on(model_->device());
  at::Tensor x = hidden(batch, recorder);
  // Only rows with a loss need the final norm and the head.
  if (batch.loss_rows.defined()) x = x.index_select(0, batch.loss_rows);
  const at::Tensor normed = dp::layer_norm(ln_f_, x, config_.layer_norm_epsilon, batch.loss_segments, recorder);
  return dp::linear_cross_entropy(head_, normed, batch.targets, batch.loss_segments, recorder,
                                  options_.head_tile_bytes.value_or(dp::head_tile_bytes(model_->device())));
}

at::Tensor Gpt2::summed_unit_losses(const TokenBatch& from_anywhere, const dp::RecorderPtr& recorder) {
  const TokenBatch batch = from_anywhere.on(model_->device());
  return row_losses(batch, recorder).dot(batch.loss_weights);
}

at::Tensor Gpt2::logits(const TokenBatch& from_anywhere) {
  const at::NoGradGuard no_grad;
  const TokenBatch batch = from_anywhere.on(model_->device());
  const auto leases = resident();
  const at::Tensor x =
      dp::layer_norm(ln_f_, hidden(batch, nullptr), config_.layer_norm_epsilon, batch.segments, nullptr);
  return dp::linear(head_, x, batch.segments, nullptr).to(at::kFloat);
}

void initialize(Gpt2& model, uint64_t seed) {
  auto& parameters = model.parameters();
  auto generator = at::detail::createCPUGenerator(seed);
  const double residual = 1.0 / std::sqrt(2.0 * static_cast<double>(model.config().n_layer));
  for (const auto& parameter : parameters.parameters()) {
    const std::string& name = parameter->name();
    if (is_adapter(name)) continue;
    at::Tensor whole = at::zeros(parameter->whole_shape(), at::kFloat);
    if (parameter->shape().size() > 1) {
      whole.normal_(0.0, model.config().initializer_range, generator);
      if (name.ends_with("c_proj.weight")) whole.mul_(residual);
    } else if (name.ends_with(".weight")) {
      whole.fill_(1.0);
    }
    parameters.set_parameter(*parameter, whole);
  }
  initialize_adapters(parameters, seed);
}

}  // namespace ghostshard::gpt2
