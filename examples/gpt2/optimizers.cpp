#include "examples/gpt2/optimizers.h"

#include <string>

#include "dp/optimizers/coded_adamw.h"
#include "examples/gpt2/optimizer_names.h"

namespace ghostshard::gpt2 {
namespace {

// Of the transformer layers; embeddings and the head, whose rows are tokens', go by AdamW.
bool is_hidden_matrix(const std::string& name, size_t extents) {
  return extents == 2 && name.starts_with("transformer.h.");
}

fsdp::MuonOptions muon_options(const Options& o, const Config& config) {
  fsdp::MuonOptions muon{.weight_decay = o.weight_decay, .adamw = {.weight_decay = o.weight_decay}};
  if (o.momentum) muon.momentum = *o.momentum;
  muon.matrices = [](const fsdp::Parameter& p) { return is_hidden_matrix(p.name(), p.shape().size()); };
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

std::optional<fsdp::Granule> granule_of(const Options& o) {
  if (o.optimizer != kEightBits) return std::nullopt;
  return dp::eight_bit_granule();
}

double optimizer_values(const Options& o, const std::vector<fsdp::BlockSpec>& blocks) {
  if (o.offload_optimizer) return 0;
  if (o.optimizer == kSgd) return o.momentum.value_or(0) > 0 ? 1 : 0;
  if (o.optimizer == kEightBits) return 2 * (1.0 / 4 + 1.0 / 256);
  if (o.optimizer == kAdamW) return 2;
  double trained = 0, values = 0;
  for (const fsdp::BlockSpec& block : blocks) {
    for (const fsdp::ParameterSpec& spec : block.parameters) {
      if (!spec.trainable) continue;
      double elements = 1;
      for (const int64_t extent : spec.shape) elements *= static_cast<double>(extent);
      trained += elements;
      values += elements * (is_hidden_matrix(spec.name, spec.shape.size()) ? 1 : 2);
    }
  }
  return trained > 0 ? values / trained : 0;
}

std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& o, const Config& config,
                                                fsdp::ShardedModel& parameters) {
  const auto states = o.offload_optimizer ? fsdp::StatesAt::kHost : fsdp::StatesAt::kWithModel;
  const fsdp::AdamWOptions adamw{.weight_decay = o.weight_decay};
  if (o.optimizer == kSgd) {
    return fsdp::make_sgd(parameters, {.momentum = o.momentum.value_or(0), .weight_decay = o.weight_decay}, states);
  }
  if (o.optimizer == kMuon) return fsdp::make_muon(parameters, muon_options(o, config));
  if (o.optimizer == kEightBits || o.second_moment_floor) {
    return dp::make_coded_adamw(
        parameters, {.rule = adamw, .eight_bits = o.optimizer == kEightBits, .subtract_above = o.second_moment_floor});
  }
  return fsdp::make_adamw(parameters, adamw, states);
}

}  // namespace ghostshard::gpt2
