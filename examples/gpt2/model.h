// GPT-2 (Radford et al. 2019) over GhostShard's layers, in Hugging Face's parameter names and layouts.
//
// Its blocks, each gathered as a whole: the embeddings (wte, wpe; kept gathered, as the tied head reads wte again),
// each transformer layer (gathered again for backward), the end (ln_f and, untied, lm_head; kept gathered). No dropout:
// clipping and noise regularise enough, and a unit's gradient stays a function of the unit alone.
//
// On a mesh with a model axis of M ranks each layer is cut as in Megatron-LM (arXiv:1909.08053): a rank holds n_head/M
// heads and n_inner/M inner columns; embeddings, norms and the biases of the projections are whole on every rank.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/recording/layers.h"
#include "examples/gpt2/attention.h"
#include "examples/gpt2/config.h"
#include "examples/gpt2/dataset.h"
#include "examples/gpt2/lora.h"
#include "fsdp/gather_code.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::gpt2 {

struct ModelOptions {
  LoraOptions lora;
  // What a parameter keeps together on a rank, for optimizers that need it; none: as the plan likes.
  std::function<std::optional<fsdp::Granule>(const fsdp::ParameterSpec&)> granule;
  bool activation_checkpointing = false;  // blocks keep their input alone and run forward again in backward
  // The type of gathered weights, activations and their gradients: kFloat or kBFloat16. Norms, softmax, losses,
  // per-unit norms and sums are float32 either way.
  at::ScalarType compute_dtype = at::kFloat;
  // How weights travel between ranks, and so which values layers compute with; null: as they are, in the compute dtype.
  std::shared_ptr<const fsdp::GatherCode> gather_code;
  std::shared_ptr<const fsdp::WeightRounding> weight_rounding;  // null: master weights in float32, else in bfloat16
  std::optional<int64_t> head_tile_bytes;                       // if a plan has the head recomputed; none: the device's
  // By block, from a step plan. Empty: embeddings and end stay gathered, transformer layers are gathered again.
  std::vector<fsdp::Residency> residency;
};

// Throws std::invalid_argument, in words of the model, unless the mesh's model axis can cut it. Before anything is cut.
void check_mesh(const fsdp::Mesh& mesh, const Config& config, const ModelOptions& options);

// The model's blocks and parameters, before anything is cut or allocated. Throws as the constructor of Gpt2 does.
std::vector<fsdp::BlockSpec> block_specs(const Config& config, const std::vector<std::string>& freeze,
                                         const ModelOptions& options);

class Gpt2 {
 public:
  // freeze: glob patterns over parameter names ("transformer.wte.*"); one that matches nothing, or patterns that
  // leave nothing to train, are std::invalid_argument. So are n_head and n_inner that the model axis does not divide,
  // and adapters, bfloat16 or codes on a mesh with model ranks. With adapters nothing else is trained.
  Gpt2(fsdp::Mesh& mesh, const Config& config, const std::vector<std::string>& freeze,
       const ModelOptions& options = {});

  const Config& config() const { return config_; }
  const LoraOptions& lora() const { return options_.lora; }
  fsdp::ShardedModel& parameters() { return *model_; }

  // Leases on the blocks that stay gathered during a step. Take them before forward, drop them after backward.
  std::vector<fsdp::Lease> resident();

  // Batches may be on any device; results are on the model's.
  // −log p(target) of every loss row, float32 [M], differentiable; recorder null: no gradients.
  at::Tensor row_losses(const TokenBatch& batch, const dp::RecorderPtr& recorder);
  // Sum over units of each unit's mean loss; backward starts from it.
  at::Tensor summed_unit_losses(const TokenBatch& batch, const dp::RecorderPtr& recorder);
  // Logits of all rows, [N,V], without gradients.
  at::Tensor logits(const TokenBatch& batch);

 private:
  struct Block {
    dp::LayerNormUse ln_1, ln_2;
    AdaptedLinear attention_in, attention_out, mlp_in, mlp_out;
  };

  at::Tensor hidden(const TokenBatch& batch, const dp::RecorderPtr& recorder);
  at::Tensor block(const Block& block, const at::Tensor& x, const dp::SegmentsPtr& segments,
                   const AttentionPlan& attention, const dp::RecorderPtr& recorder) const;
  at::Tensor activation(const at::Tensor& x) const;

  Config config_;
  ModelOptions options_;
  std::unique_ptr<fsdp::ShardedModel> model_;
  std::vector<Block> blocks_;
  dp::LayerNormUse ln_f_;
  dp::LinearUse head_;
  const fsdp::Parameter* wte_ = nullptr;
  const fsdp::Parameter* wpe_ = nullptr;
};

// Fresh weights as GPT-2 was initialised: N(0, initializer_range²), residual projections divided by sqrt(2·n_layer),
// biases 0, scales 1; adapters as by initialize_adapters(). The same for every number of ranks. A collective.
void initialize(Gpt2& model, uint64_t seed);

}  // namespace ghostshard::gpt2
