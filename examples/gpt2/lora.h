// Low-rank adapters (LoRA, arXiv:2106.09685, section 4.1): y = x W + b + (alpha/r)·(x Aᵀ) Bᵀ with W and b fixed.
//
// A [r, in] starts random and B [out, r] at zero, so that training starts from the base model's function. Both are
// parameters of their own in their block, trained through two ordinary ghost layers: their per-unit norms and clipped
// sums follow the same rules as any matrix's. Everything else is frozen and has no gradient buffer, no optimizer state
// and no noise. Names and layouts are PEFT's ("<module>.lora_A.weight").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dp/recording/layers.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::gpt2 {

class Gpt2;

struct LoraOptions {
  int64_t rank = 0;  // r; 0: no adapters
  double alpha = 0;  // > 0 if rank > 0
  // Globs over the block's projections, by their name in the block ("attn.c_attn", "mlp.*") or in the whole model
  // ("transformer.h.0.attn.c_attn").
  std::vector<std::string> targets;

  bool enabled() const { return rank > 0; }
  double scale() const { return alpha / static_cast<double>(rank); }
};

// One projection of a block, with or without an adapter.
struct AdaptedLinear {
  dp::LinearUse base;
  dp::LinearUse down, up;  // A and B; without weights if there is no adapter
  double scale = 0;
};

// Adds A and B to every projection that a target names, and freezes all other parameters. std::invalid_argument: a
// target that names nothing, rank < 0, alpha not finite or not > 0.
void add_adapters(std::vector<fsdp::BlockSpec>& blocks, const LoraOptions& options);

// `module` as it stands in the model: its weight, its bias and, if add_adapters() gave it one, its adapter.
AdaptedLinear adapted_linear_use(const fsdp::ShardedModel& model, const std::string& module,
                                 const LoraOptions& options);

at::Tensor adapted_linear(const AdaptedLinear& use, const at::Tensor& x, const dp::SegmentsPtr& segments,
                          const dp::RecorderPtr& recorder);

// The name ends in ".lora_A.weight" or ".lora_B.weight".
bool is_adapter(const std::string& parameter_name);

// A uniform in ±1/sqrt(in), as PEFT and loralib start it (Kaiming with a = sqrt(5)); B zero. The same for every number
// of ranks. A collective. A model without adapters stays as it is.
void initialize_adapters(fsdp::ShardedModel& model, uint64_t seed);

// The weight [in, out] of `module` with its adapter folded in: W + scale·Aᵀ Bᵀ, formed in float64, float32. Without
// adapter the weight itself. A collective.
at::Tensor merged_weight(fsdp::ShardedModel& model, const std::string& module, const LoraOptions& options);

// Writes adapter_config.json and adapter_model.safetensors as PEFT reads them; the former names base_model (may be
// empty). A collective; rank 0 writes. For a model without adapters nothing is written.
void save_adapters(Gpt2& model, const std::string& base_model, const std::filesystem::path& path);

}  // namespace ghostshard::gpt2
