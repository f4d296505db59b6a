#include "examples/gpt2/optimizers.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "dp/optimizers/coded_adamw.h"
#include "fsdp/optimizer_groups.h"
#include "fsdp/shampoo.h"
#include "kernels/quantised_moments.h"

namespace ghostshard::gpt2 {
namespace {

int64_t tile_side(const OptimizerOptions& o) { return o.tile_side.value_or(fsdp::TiledOptions().side); }

// Among parameters that belong to a rule.
fsdp::Chosen matrices_of(const ParameterRule& rule) {
  return [rule](const fsdp::Parameter& p) { return rule.takes_as_matrix(p.name(), p.shape().size()); };
}

fsdp::AdamWOptions adamw_options(const OptimizerOptions& o) {
  fsdp::AdamWOptions adamw{.weight_decay = o.weight_decay};
  if (o.betas) adamw.beta1 = o.betas->at(0), adamw.beta2 = o.betas->at(1);
  adamw.epsilon = o.epsilon.value_or(adamw.epsilon);
  return adamw;
}

fsdp::ShampooOptions tiled_options(const ParameterRule& rule) {
  const OptimizerOptions& o = rule.optimizer;
  fsdp::ShampooOptions tiled;
  tiled.side = tile_side(o);
  tiled.refresh_every = o.refresh_every.value_or(tiled.refresh_every);
  tiled.factor_beta = o.factor_decay.value_or(tiled.factor_beta);
  tiled.weight_decay = o.weight_decay;
  tiled.adamw = adamw_options(o);
  tiled.matrices = matrices_of(rule);
  return tiled;
}

dp::MomentBits moment_bits(const OptimizerOptions& o) {
  if (o.name == kEightBits) return dp::MomentBits::kEight;
  return o.name == kSixteenBits ? dp::MomentBits::kSixteen : dp::MomentBits::kThirtyTwo;
}

fsdp::MuonOptions muon_options(const ParameterRule& rule, const Config& config) {
  const OptimizerOptions& o = rule.optimizer;
  fsdp::MuonOptions muon{.weight_decay = o.weight_decay, .adamw = adamw_options(o)};
  if (o.momentum) muon.momentum = *o.momentum;
  if (o.muon_noise == "drop") muon.errors = fsdp::MuonErrors::kDrop;
  if (o.muon_noise == "correct") muon.errors = fsdp::MuonErrors::kCorrect;
  muon.matrices = matrices_of(rule);
  if (o.muon_heads) {
    // Queries, keys and values stand side by side in the columns, and so do their heads.
    muon.pieces = [heads = config.n_head](const fsdp::Parameter& p) {
      const bool fused = p.name().ends_with("attn.c_attn.weight");
      return fsdp::MuonOptions::Pieces{.extent = 1, .count = fused ? 3 * heads : 1};
    };
  }
  return muon;
}

// float32 numbers that a rule keeps of this rank's part of a parameter, on a rank that has all of the part.
double numbers_of(const ParameterRule& rule, const fsdp::ParameterSpec& spec, double elements) {
  const OptimizerOptions& o = rule.optimizer;
  if (o.name == kSgd) return o.momentum.value_or(0) > 0 ? elements : 0;
  if (o.name == kEightBits) {
    const bool coded = elements >= static_cast<double>(dp::CodedAdamWOptions().least_coded);
    return 2 * (coded ? elements / 4 + std::ceil(elements / kernels::kStretch) : elements);
  }
  if (o.name == kSixteenBits) return elements;
  if (!rule.takes_as_matrix(spec.name, spec.shape.size())) return elements * 2;
  return o.name == kMuon ? elements
                         : static_cast<double>(fsdp::tiled_numbers(spec.shape[0], spec.shape[1], tile_side(o)));
}

std::unique_ptr<fsdp::Optimizer> optimizer_of(const ParameterRule& rule, fsdp::StatesAt states, const Config& config,
                                              fsdp::ShardedModel& parameters, const fsdp::Chosen& chosen) {
  const OptimizerOptions& o = rule.optimizer;
  if (o.name == kSgd) {
    const fsdp::SgdOptions sgd{.momentum = o.momentum.value_or(0), .weight_decay = o.weight_decay};
    return fsdp::make_sgd(parameters, sgd, states, chosen);
  }
  if (o.name == kMuon) return fsdp::make_muon(parameters, muon_options(rule, config), chosen);
  if (o.name == kShampoo) return fsdp::make_shampoo(parameters, tiled_options(rule), chosen);
  if (o.name == kSoap) return fsdp::make_soap(parameters, tiled_options(rule), chosen);
  if (o.name == kAdamW && !o.second_moment_floor) {
    return fsdp::make_adamw(parameters, adamw_options(o), states, chosen);
  }
  return dp::make_coded_adamw(
      parameters, {.rule = adamw_options(o), .bits = moment_bits(o), .subtract_above = o.second_moment_floor}, chosen);
}

}  // namespace

Granules granules_of(const ParameterRules& rules, const LayOut& lay_out) {
  constexpr int64_t kLarge = dp::CodedAdamWOptions().least_coded;  // elements; vectors would only cost padding
  constexpr double kMostPadding = 0.03;
  const auto any = [&](const auto& holds) {
    return std::any_of(rules.rules().begin(), rules.rules().end(),
                       [&](const ParameterRule& rule) { return holds(rule.optimizer); });
  };
  const auto granules = [rules](bool with_tiles) -> Granules {
    return [rules, with_tiles](const fsdp::ParameterSpec& spec) -> std::optional<fsdp::Granule> {
      const ParameterRule& rule = rules.of(spec.name);
      const bool is_large = c10::multiply_integers(spec.shape) >= kLarge;
      if (rule.optimizer.name == kEightBits && is_large) return dp::eight_bit_granule();
      const bool tiled = rule.optimizer.takes_tiles() && rule.takes_as_matrix(spec.name, spec.shape.size());
      return tiled && with_tiles ? std::optional(fsdp::Granule::tiles(tile_side(rule.optimizer))) : std::nullopt;
    };
  };
  const bool needed = any([](const OptimizerOptions& o) { return o.name == kEightBits; });
  if (any([](const OptimizerOptions& o) { return o.takes_tiles(); })) {
    const auto tiled = lay_out(granules(true));
    const bool cheap =
        static_cast<double>(tiled->padding()) < kMostPadding * static_cast<double>(tiled->parameter_count());
    if (cheap) return granules(true);
  }
  return needed ? granules(false) : nullptr;
}

double optimizer_values(const Options& o, const ParameterRules& rules, const std::vector<fsdp::BlockSpec>& blocks) {
  if (o.offload_optimizer) return 0;
  double trained = 0, values = 0;
  for (const fsdp::BlockSpec& block : blocks) {
    for (const fsdp::ParameterSpec& spec : block.parameters) {
      if (!spec.trainable) continue;
      const auto part = fsdp::part_shape(spec.name, spec.shape, spec.split, o.mesh ? o.mesh->model : 1);
      const auto elements = static_cast<double>(c10::multiply_integers(part));
      trained += elements;
      values += numbers_of(rules.of(spec.name), spec, elements);
    }
  }
  return trained > 0 ? values / trained : 0;
}

double optimizer_step_bytes(const ParameterRules& rules, const fsdp::ModelLayout& model) {
  int64_t most = 0;
  for (size_t i = 0; i < rules.rules().size(); ++i) {
    const ParameterRule& rule = rules.rules()[i];
    if (!rule.optimizer.takes_matrices() || !rules.has_parameters(i)) continue;
    const fsdp::Chosen matrices = [&, takes = matrices_of(rule)](const fsdp::Parameter& p) {
      return rules.index(p.name()) == i && takes(p);
    };
    const auto rows = rule.optimizer.takes_tiles() ? std::optional(tile_side(rule.optimizer)) : std::nullopt;
    most = std::max(most, fsdp::matrix_step_bytes(model, matrices, rows));
  }
  return static_cast<double>(most);
}

std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& o, const ParameterRules& rules, const Config& config,
                                                fsdp::ShardedModel& parameters) {
  const auto states = o.offload_optimizer ? fsdp::StatesAt::kHost : fsdp::StatesAt::kWithModel;
  if (rules.rules().size() == 1) return optimizer_of(rules.rules().front(), states, config, parameters, nullptr);
  std::vector<fsdp::OptimizerGroup> groups;
  for (size_t i = 0; i < rules.rules().size(); ++i) {
    if (!rules.has_parameters(i)) continue;
    const ParameterRule& rule = rules.rules()[i];
    const fsdp::Chosen mine = [rules, i](const fsdp::Parameter& p) { return rules.index(p.name()) == i; };
    groups.push_back({optimizer_of(rule, states, config, parameters, mine), mine, rule.rate});
  }
  return fsdp::join_optimizers(parameters, std::move(groups));
}

}  // namespace ghostshard::gpt2
