// The slow, obviously right twin: GPT-2 in float64 with plain autograd, one text at a time.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "examples/gpt2/config.h"

namespace ghostshard::tests {

using Gradients = std::map<std::string, at::Tensor>;  // float64, by Hugging Face name

struct Text {
  std::vector<int64_t> tokens;
  std::vector<uint8_t> mask;  // 1 for a token that must be predicted
};

using Unit = std::vector<Text>;  // one privacy unit

class ReferenceGpt2 {
 public:
  // weights: float32 or float64 by name; those in `frozen` get no gradient. Where there are adapters among them, they
  // count lora_scale times.
  ReferenceGpt2(gpt2::Config config, const std::map<std::string, at::Tensor>& weights,
                const std::vector<std::string>& frozen, double lora_scale = 0)
      : config_(std::move(config)), lora_scale_(lora_scale) {
    for (const auto& [name, value] : weights) {
      const bool fixed = std::find(frozen.begin(), frozen.end(), name) != frozen.end();
      weights_[name] = value.to(at::kDouble).clone().set_requires_grad(!fixed);
    }
  }

  // Mean loss over the predicted tokens of all texts of one unit; zero if there is none.
  at::Tensor loss(const Unit& unit) const {
    at::Tensor sum = at::zeros({}, at::kDouble);
    int64_t predicted = 0;
    for (const Text& text : unit) {
      for (size_t t = 1; t < text.mask.size(); ++t) predicted += text.mask[t] != 0 ? 1 : 0;
      sum = sum + summed_loss(text);
    }
    return predicted > 0 ? sum / static_cast<double>(predicted) : at::zeros({}, at::kDouble);
  }

  at::Tensor summed_loss(const Text& text) const {
    const auto length = static_cast<int64_t>(text.tokens.size()) - 1;
    if (length < 1) return at::zeros({}, at::kDouble);
    const at::Tensor tokens = at::tensor(at::ArrayRef<int64_t>(text.tokens));
    const at::Tensor log_p = at::log_softmax(logits(tokens.narrow(0, 0, length)), 1);
    const at::Tensor picked = -log_p.gather(1, tokens.narrow(0, 1, length).unsqueeze(1)).squeeze(1);
    std::vector<double> mask;
    for (int64_t t = 1; t <= length; ++t) mask.push_back(text.mask[static_cast<size_t>(t)] != 0 ? 1.0 : 0.0);
    const at::Tensor m = at::tensor(at::ArrayRef<double>(mask), at::TensorOptions(at::kDouble));
    return (picked * m).sum();
  }

  at::Tensor logits(const at::Tensor& ids) const {
    const int64_t length = ids.size(0);
    at::Tensor x = w("transformer.wte.weight").index_select(0, ids) + w("transformer.wpe.weight").narrow(0, 0, length);
    for (int64_t layer = 0; layer < config_.n_layer; ++layer) {
      const std::string h = "transformer.h." + std::to_string(layer) + ".";
      x = x + linear(attention(linear(norm(x, h + "ln_1"), h + "attn.c_attn")), h + "attn.c_proj");
      x = x + linear(gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj");
    }
    x = norm(x, "transformer.ln_f");
    return at::mm(x, w(config_.tie_word_embeddings ? "transformer.wte.weight" : "lm_head.weight").t());
  }

  Gradients gradient(const Unit& unit) const {
    std::vector<at::Tensor> inputs;
    std::vector<std::string> names;
    for (const auto& [name, value] : weights_) {
      if (!value.requires_grad()) continue;
      inputs.push_back(value);
      names.push_back(name);
    }
    Gradients result;
    const at::Tensor value = loss(unit);
    std::vector<at::Tensor> grads(inputs.size());
    if (value.requires_grad()) {
      grads = torch::autograd::grad({value}, inputs, {}, std::nullopt, false, /*allow_unused=*/true);
    }
    for (size_t i = 0; i < names.size(); ++i) {
      result[names[i]] = grads[i].defined() ? grads[i] : at::zeros_like(inputs[i]);
    }
    return result;
  }

 private:
  at::Tensor w(const std::string& name) const { return weights_.at(name); }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = at::mm(x, w(name + ".weight")) + w(name + ".bias");
    if (!weights_.contains(name + ".lora_A.weight")) return y;
    return y + lora_scale_ * at::mm(at::mm(x, w(name + ".lora_A.weight").t()), w(name + ".lora_B.weight").t());
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean(1, true);
    return centred / (centred.pow(2).mean(1, true) + config_.layer_norm_epsilon).sqrt() * w(name + ".weight") +
           w(name + ".bias");
  }
  static at::Tensor gelu(const at::Tensor& x) {
    return 0.5 * x * (1 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3))));
  }
  at::Tensor attention(const at::Tensor& qkv) const {
    const int64_t length = qkv.size(0);
    const int64_t size = config_.head_size();
    const auto parts = qkv.split(config_.n_embd, 1);
    std::vector<at::Tensor> heads;
    const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
    for (int64_t head = 0; head < config_.n_head; ++head) {
      const at::Tensor q = parts[0].narrow(1, head * size, size);
      const at::Tensor k = parts[1].narrow(1, head * size, size);
      const at::Tensor v = parts[2].narrow(1, head * size, size);
      const at::Tensor scores = (at::mm(q, k.t()) / std::sqrt(static_cast<double>(size)))
                                    .masked_fill(later, -std::numeric_limits<double>::infinity());
      heads.push_back(at::mm(scores.softmax(1), v));
    }
    return at::cat(heads, 1);
  }

  gpt2::Config config_;
  double lora_scale_;
  std::map<std::string, at::Tensor> weights_;
};

inline double norm_of(const Gradients& gradients) {
  double squared = 0;
  for (const auto& [name, value] : gradients) squared += value.pow(2).sum().item<double>();
  return std::sqrt(squared);
}

// Sum over units of min(1, C/‖g‖)·g; with layers (by parameter, which of K layers it belongs to) each layer for itself
// with C/√K.
inline Gradients clipped_sum(const ReferenceGpt2& model, const std::vector<Unit>& units, double clip_norm,
                             const std::map<std::string, int64_t>& layers = {}) {
  std::map<int64_t, std::vector<std::string>> names;
  for (const auto& [name, layer] : layers) names[layer].push_back(name);
  Gradients sum;
  const auto add = [&](const Gradients& g, double bound) {
    const double norm = norm_of(g);
    const double factor = norm > bound ? bound / norm : 1.0;
    for (const auto& [name, value] : g) {
      auto [at, fresh] = sum.try_emplace(name, value * factor);
      if (!fresh) at->second += value * factor;
    }
  };
  for (const Unit& unit : units) {
    const Gradients g = model.gradient(unit);
    if (layers.empty()) add(g, clip_norm);
    for (const auto& [layer, members] : names) {
      Gradients part;
      for (const std::string& name : members) part.emplace(name, g.at(name));
      add(part, clip_norm / std::sqrt(static_cast<double>(names.size())));
    }
  }
  return sum;
}

}  // namespace ghostshard::tests
