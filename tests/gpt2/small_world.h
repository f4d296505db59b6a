// A small GPT-2, texts of awkward lengths, and one private step over any number of ranks, for tests.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <filesystem>
#include <string>
#include <vector>

#include "dp/mechanism/optimizer.h"
#include "dp/mechanism/plan.h"
#include "dp/run/microbatch.h"
#include "examples/gpt2/model.h"
#include "fsdp/safetensors.h"
#include "tests/gpt2/reference_gpt2.h"
#include "tests/support/device_mesh.h"
#include "tests/support/keys.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::tests {

inline gpt2::Config small_config(bool tied, int64_t heads = 3) {
  gpt2::Config c;
  c.vocab_size = 61;
  c.n_positions = 24;
  c.n_embd = 24;
  c.n_layer = 3;
  c.n_head = heads;
  c.n_inner = 40;
  c.initializer_range = 0.2;  // large enough that every parameter's gradient matters in the comparison
  c.tie_word_embeddings = tied;
  return c;
}

// Ragged: a text of one token (no rows), of two, full length, repeated tokens, masked prompts, and one with no loss.
inline std::vector<Text> awkward_texts(const gpt2::Config& c) {
  std::vector<Text> texts;
  at::manual_seed(7);
  for (const int64_t length : {1, 2, 25, 3, 9, 9, 14, 25, 5, 17, 2, 8}) {
    Text text;
    const at::Tensor tokens = at::randint(0, c.vocab_size, {length}, at::kLong);
    for (int64_t t = 0; t < length; ++t) {
      text.tokens.push_back(texts.size() % 3 == 2 ? tokens[t].item<int64_t>() % 4 : tokens[t].item<int64_t>());
      text.mask.push_back(texts.size() % 4 == 3 && t < length / 2 ? 0 : 1);
    }
    texts.push_back(std::move(text));
  }
  for (auto& flag : texts[5].mask) flag = 0;
  return texts;
}

// Each text a unit; or units of as many texts, one after the other, as texts_per_unit says.
inline std::vector<Unit> units_of(const std::vector<Text>& texts, const std::vector<int64_t>& texts_per_unit) {
  std::vector<Unit> units;
  if (texts_per_unit.empty()) {
    for (const Text& text : texts) units.push_back({text});
    return units;
  }
  auto next = texts.begin();
  for (const int64_t count : texts_per_unit) {
    units.emplace_back(next, next + count);
    next += count;
  }
  return units;
}

inline std::filesystem::path write_texts(const std::filesystem::path& path, const std::vector<Text>& texts,
                                         const std::vector<int64_t>& texts_per_unit = {}) {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  std::vector<int64_t> offsets{0};
  for (const Text& text : texts) {
    tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
    mask.insert(mask.end(), text.mask.begin(), text.mask.end());
    offsets.push_back(static_cast<int64_t>(tokens.size()));
  }
  std::vector<fsdp::NamedTensor> columns = {
      {"tokens", at::tensor(at::ArrayRef<int32_t>(tokens), at::TensorOptions(at::kInt))},
      {"offsets", at::tensor(at::ArrayRef<int64_t>(offsets), at::TensorOptions(at::kLong))},
      {"loss_mask", at::tensor(at::ArrayRef<uint8_t>(mask), at::TensorOptions(at::kByte))}};
  if (!texts_per_unit.empty()) {
    std::vector<int64_t> unit_offsets{0};
    for (const int64_t count : texts_per_unit) unit_offsets.push_back(unit_offsets.back() + count);
    columns.push_back({"unit_offsets", at::tensor(at::ArrayRef<int64_t>(unit_offsets), at::TensorOptions(at::kLong))});
  }
  fsdp::write_safetensors(path, columns, {});
  return path;
}

// Weights whose every element matters: biases, scales and adapters are moved off their initial 0 and 1. The same on all
// ranks.
inline void randomize(gpt2::Gpt2& model, uint64_t seed) {
  gpt2::initialize(model, seed);
  auto random = at::detail::createCPUGenerator(seed + 1);
  auto& parameters = model.parameters();
  for (const auto& parameter : parameters.parameters()) {
    if (parameter->shape().size() > 1 && !parameter->name().ends_with("lora_B.weight")) continue;
    const double centre = parameter->shape().size() == 1 && parameter->name().ends_with(".weight") ? 1.0 : 0.0;
    parameters.set_parameter(*parameter, at::empty(parameter->whole_shape(), at::kFloat).normal_(centre, 0.2, random));
  }
}

inline std::map<std::string, at::Tensor> whole_weights(gpt2::Gpt2& model) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : model.parameters().parameters()) {
    weights[parameter->name()] = model.parameters().whole_parameter(*parameter);
  }
  return weights;
}

// The values that layers compute with, in float32.
inline std::map<std::string, at::Tensor> used_weights(gpt2::Gpt2& model) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : model.parameters().parameters()) {
    const fsdp::Lease lease(model.parameters(), parameter->block());
    weights[parameter->name()] = parameter->value().to(at::kFloat).cpu().clone();
  }
  return weights;
}

inline const accountant::NoiseMultiplier kNoNoise{1e-30};

// Runs backward over a rank's microbatches and hands the sum over.
inline dp::ClippedSum clipped_batch(gpt2::Gpt2& model, dp::Clipper& clipper, const gpt2::Dataset& data,
                                    const dp::Microbatches& microbatches, dp::GaussianMechanism& mechanism,
                                    const dp::StepId& step) {
  dp::ClippedSum sum = clipper.begin(mechanism, step);
  const auto resident = model.resident();
  for (const auto& units : microbatches) {
    const gpt2::TokenBatch batch = data.batch(units);
    dp::add_microbatch(clipper, sum, batch.units(),
                       [&](const dp::RecorderPtr& recorder) { return model.summed_unit_losses(batch, recorder); });
  }
  return sum;
}

// This rank's slices against whole expected gradients: squared distance and squared norm over the elements that the
// rank owns.
struct Distance {
  double squared_difference = 0;
  double squared_norm = 0;
};
inline Distance compare_slices(fsdp::ShardedModel& model, const fsdp::ShardBuffers& slices, double scale,
                               const Gradients& expected) {
  Distance d;
  for (const auto& group : model.groups()) {
    if (!group->trainable()) continue;
    const at::Tensor slice = slices.shard(*group).cpu().to(at::kDouble) * scale;
    for (const auto& range : group->owned()) {
      const std::string& name = group->parameters()[static_cast<size_t>(range.tensor)]->name();
      for (const auto& run :
           group->parameters()[static_cast<size_t>(range.tensor)]->whole_runs(range.first, range.count)) {
        const at::Tensor want = expected.at(name).reshape(-1).narrow(0, run.whole_first, run.count);
        const at::Tensor got = slice.narrow(0, range.shard_offset + run.first - range.first, run.count);
        d.squared_difference += (want - got).pow(2).sum().item<double>();
        d.squared_norm += want.pow(2).sum().item<double>();
      }
    }
  }
  return d;
}

}  // namespace ghostshard::tests
