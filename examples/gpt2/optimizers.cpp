#include "examples/gpt2/optimizers.h"

#include <string>

#include "dp/optimizers/coded_adamw.h"
#include "examples/gpt2/optimizer_names.h"
#include "fsdp/shampoo.h"

namespace ghostshard::gpt2 {
namespace {

// Of the transformer layers; embeddings and the head, whose rows are tokens', go by AdamW.
bool is_hidden_matrix(const std::string& name, size_t extents) {
  return extents == 2 && name.starts_with("transformer.h.");
}

bool hidden_matrix(const fsdp::Parameter& p) { return is_hidden_matrix(p.name(), p.shape().size()); }

bool is_tiled(const Options& o) { return o.optimizer == kShampoo || o.optimizer == kSoap; }

int64_t tile_side(const Options& o) { return o.tile_side.value_or(fsdp::TiledOptions().side); }

fsdp::ShampooOptions tiled_options(const Options& o) {
  fsdp::ShampooOptions tiled;
  tiled.side = tile_side(o);
  tiled.refresh_every = o.refresh_every.value_or(tiled.refresh_every);
  tiled.factor_beta = o.factor_decay.value_or(tiled.factor_beta);
  tiled.weight_decay = tiled.adamw.weight_decay = o.weight_decay;
  tiled.matrices = hidden_matrix;
  return tiled;
}

dp::MomentBits moment_bits(const Options& o) {
  if (o.optimizer == kEightBits) return dp::MomentBits::kEight;
  return o.optimizer == kSixteenBits ? dp::MomentBits::kSixteen : dp::MomentBits::kThirtyTwo;
}

// float32 numbers for each element of a parameter.
double numbers_an_element(const Options& o, const fsdp::ParameterSpec& spec, double elements) {
  if (!is_hidden_matrix(spec.name, spec.shape.size())) return 2;
  if (o.optimizer == kMuon) return 1;
  return static_cast<double>(fsdp::tiled_numbers(spec.shape[0], spec.shape[1], tile_side(o))) / elements;
}

fsdp::MuonOptions muon_options(const Options& o, const Config& config) {
  fsdp::MuonOptions muon{.weight_decay = o.weight_decay, .adamw = {.weight_decay = o.weight_decay}};
  if (o.momentum) muon.momentum = *o.momentum;
  muon.matrices = hidden_matrix;
  if (o.muon_heads) {
    // Queries, keys and values stand side by side in the columns, and so do their heads.
    muon.pieces = [heads = config.n_head](const fsdp::Parameter& p) {
      const bool fused = p.name().ends_with("attn.c_attn.weight");
      return fsdp::MuonOptions::Pieces{.extent = 1, .count = fused ? 3 * heads : 1};
    };
  }
  return muon;
}

}  // namespace

Granules granules_of(const Options& o, const LayOut& lay_out) {
  constexpr int64_t kLarge = 4096;  // elements; vectors would only cost padding
  constexpr double kMostPadding = 0.03;
  if (o.optimizer == kEightBits) {
    return [](const fsdp::ParameterSpec& spec) -> std::optional<fsdp::Granule> {
      if (c10::multiply_integers(spec.shape) < kLarge) return std::nullopt;
      return dp::eight_bit_granule();
    };
  }
  if (!is_tiled(o)) return nullptr;
  const Granules tiles = [side = tile_side(o)](const fsdp::ParameterSpec& spec) -> std::optional<fsdp::Granule> {
    if (!is_hidden_matrix(spec.name, spec.shape.size())) return std::nullopt;
    return fsdp::Granule::tiles(side);
  };
  const auto tiled = lay_out(tiles);
  const bool cheap =
      static_cast<double>(tiled->padding()) < kMostPadding * static_cast<double>(tiled->parameter_count());
  return cheap ? tiles : nullptr;
}

double optimizer_values(const Options& o, const std::vector<fsdp::BlockSpec>& blocks) {
  if (o.offload_optimizer) return 0;
  if (o.optimizer == kSgd) return o.momentum.value_or(0) > 0 ? 1 : 0;
  if (o.optimizer == kEightBits) return 2 * (1.0 / 4 + 1.0 / 256);
  if (o.optimizer == kSixteenBits) return 1;
  if (o.optimizer == kAdamW) return 2;
  double trained = 0, values = 0;
  for (const fsdp::BlockSpec& block : blocks) {
    for (const fsdp::ParameterSpec& spec : block.parameters) {
      if (!spec.trainable) continue;
      double elements = 1;
      for (const int64_t extent : spec.shape) elements *= static_cast<double>(extent);
      trained += elements;
      values += elements * numbers_an_element(o, spec, elements);
    }
  }
  return trained > 0 ? values / trained : 0;
}

double optimizer_step_bytes(const Options& o, const fsdp::ModelLayout& model) {
  if (is_tiled(o)) return static_cast<double>(fsdp::matrix_step_bytes(model, hidden_matrix, tile_side(o)));
  if (o.optimizer == kMuon) return static_cast<double>(fsdp::matrix_step_bytes(model, hidden_matrix));
  return 0;
}

std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& o, const Config& config,
                                                fsdp::ShardedModel& parameters) {
  const auto states = o.offload_optimizer ? fsdp::StatesAt::kHost : fsdp::StatesAt::kWithModel;
  const fsdp::AdamWOptions adamw{.weight_decay = o.weight_decay};
  if (o.optimizer == kSgd) {
    return fsdp::make_sgd(parameters, {.momentum = o.momentum.value_or(0), .weight_decay = o.weight_decay}, states);
  }
  if (o.optimizer == kMuon) return fsdp::make_muon(parameters, muon_options(o, config));
  if (o.optimizer == kShampoo) return fsdp::make_shampoo(parameters, tiled_options(o));
  if (o.optimizer == kSoap) return fsdp::make_soap(parameters, tiled_options(o));
  if (o.optimizer != kAdamW || o.second_moment_floor) {
    return dp::make_coded_adamw(parameters,
                                {.rule = adamw, .bits = moment_bits(o), .subtract_above = o.second_moment_floor});
  }
  return fsdp::make_adamw(parameters, adamw, states);
}

}  // namespace ghostshard::gpt2
