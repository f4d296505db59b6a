#include "examples/gpt2/setup.h"

#include <cmath>
#include <stdexcept>

#include "dp/gathering/weight_code.h"
#include "dp/optimizers/weight_rounding.h"
#include "examples/gpt2/clipping.h"
#include "examples/gpt2/generate.h"
#include "examples/gpt2/max_batch.h"
#include "examples/gpt2/noise_bands.h"
#include "examples/gpt2/optimizers.h"
#include "examples/gpt2/run_folder.h"
#include "examples/gpt2/sampling.h"

namespace ghostshard::gpt2 {
namespace {

// What is computed from these texts is printed. Beside private data only a file that says itself that it is public is
// taken, and none of its texts may stand in --data too.
void check_public(const Inputs& in, const Options& o) {
  const Dataset& texts = *in.eval;
  const std::string& path = o.eval_data;
  const auto found = texts.metadata().find("declared");
  const std::string declared = found == texts.metadata().end() ? "" : found->second;
  if (declared == "private") {
    throw std::invalid_argument(path +
                                ": --eval-data must be public, the file was declared private when it was prepared");
  }
  if (!o.non_private && declared != "public") {
    throw std::invalid_argument(path + ": --eval-data must be declared public: prepare the file with --declare public");
  }
  if (!o.non_private) {
    if (const auto common = texts.text_in_common(*in.data)) {
      throw std::invalid_argument(path + ": --eval-data must have no text in common with --data, its text " +
                                  std::to_string(common->first) + " is text " + std::to_string(common->second) +
                                  " there (both counted from 0)");
    }
  }
  if (texts.loss_tokens() == 0) {
    throw std::invalid_argument(path + ": there must be at least one token to predict, found none");
  }
}

int64_t whole_steps(double steps) {
  if (!(steps <= 1e12)) {
    throw std::invalid_argument("--epochs must give at most 1e12 steps, gives " + nlohmann::json(steps).dump());
  }
  return static_cast<int64_t>(steps);
}

void read_model(Inputs& in, const Options& o) {
  if (!o.model.empty()) {
    in.folder = open_folder(o.model);
    in.config = in.folder->config;
    in.original_config = in.folder->original_config;
  } else {
    in.original_config = read_json(o.model_config);
    in.config = config_from_json(in.original_config);
  }
  if (o.untied) in.config.tie_word_embeddings = false;
}

void read_data(Inputs& in, const Options& o) {
  in.data.emplace(o.data, in.config.vocab_size, in.config.n_positions);
  if (!o.eval_data.empty()) {
    in.eval.emplace(o.eval_data, in.config.vocab_size, in.config.n_positions);
    check_public(in, o);
  }
  if (o.expected_batch > in.data->units()) {
    throw std::invalid_argument("--expected-batch must be at most the number of texts in " + o.data + " (" +
                                std::to_string(in.data->units()) + "), got " + std::to_string(o.expected_batch));
  }
}

void set_schedule(Inputs& in, const Options& o) {
  in.steps = o.steps ? *o.steps : whole_steps(steps_of_epochs(o, *o.epochs, in.data->units()));
  if (o.sample_tokens) (void)parse_token_ids(*o.sample_tokens, in.config.vocab_size);
  if (!(o.warmup_steps < in.steps)) {
    throw std::invalid_argument("--warmup-steps must be fewer than the run's " + std::to_string(in.steps) +
                                " steps, got " + std::to_string(o.warmup_steps));
  }
  in.rate = {.peak = o.learning_rate,
             .steps = in.steps,
             .shape = fsdp::schedule_shape(o.lr_schedule),
             .warmup_steps = o.warmup_steps,
             .minimum = o.min_learning_rate};
  in.rate.check();
}

dp::DpConfig plan_config(const Inputs& in, const Options& o, const std::vector<fsdp::BlockSpec>& blocks) {
  dp::DpConfig config{.units = in.data->units(), .expected_batch = o.expected_batch, .steps = in.steps};
  set_clipping(config, o);
  config.noise_bands = noise_bands(o, *in.rules, blocks, in.rate);
  config.noise_chain = noise_chain(o, *in.rules, blocks, in.rate);
  config.noise_blt =
      noise_blt(o, *in.rules, blocks, in.rate, dp::BinPasses::steps_of(in.data->units(), o.expected_batch));
  config.noise_on_host = o.offload_noise;
  config.sampling = dp::sampling_from_string(o.sampling);
  config.unit_of_privacy = in.data->unit_of_privacy();
  if (o.target_epsilon) config.target_epsilon = accountant::Epsilon(*o.target_epsilon);
  if (o.noise_multiplier) config.noise_multiplier = accountant::NoiseMultiplier(*o.noise_multiplier);
  if (o.delta) config.delta = accountant::Delta(*o.delta);
  set_max_batch(config, o);
  return config;
}

std::shared_ptr<const fsdp::GatherCode> gather_code(const std::string& dtype) {
  if (dtype == "int8") return dp::weight_code(kernels::WeightCode::kInt8);
  if (dtype == "float8") return dp::weight_code(kernels::WeightCode::kFloat8);
  return nullptr;
}

void check_folder(const Options& o) {
  if (!o.resume) return check_output_is_new(o.output);
  if (o.non_private && std::filesystem::exists(std::filesystem::path(o.output) / "ledger.jsonl")) {
    throw std::invalid_argument("--resume: " + o.output +
                                ": it holds a run with privacy, which cannot go on with --non-private");
  }
}

}  // namespace

Inputs read_inputs(const Options& o) {
  Inputs in;
  read_model(in, o);
  read_data(in, o);
  const auto blocks = block_specs(in.config, o.freeze, model_options(o));
  in.rules.emplace(o, blocks);
  set_schedule(in, o);
  if (!o.non_private) in.budget = plan_config(in, o, blocks);
  check_folder(o);
  return in;
}

int64_t checkpoint_every(const Options& o) {
  constexpr int64_t kPrivateDefault = 100;
  return o.checkpoint_every.value_or(o.non_private ? 0 : kPrivateDefault);
}

std::filesystem::path model_file(const Options& o) {
  return std::filesystem::path(o.output) / "model" / "model.safetensors";
}

ModelOptions model_options(const Options& o) {
  return {.lora = {.rank = o.lora_rank,
                   .alpha = o.lora_alpha.value_or(static_cast<double>(o.lora_rank)),
                   .targets = o.lora_targets},
          .activation_checkpointing = o.activation_checkpointing,
          .compute_dtype = o.compute_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat,
          .gather_code = gather_code(o.gather_dtype),
          .weight_rounding = o.master_dtype == "bfloat16" ? dp::keyed_weight_rounding() : nullptr};
}

PlannedStep planned_step(const Options& o, const Inputs& in, const ModelOptions& options, fsdp::Mesh& mesh,
                         const dp::StepCosts& costs) {
  check_mesh(mesh, in.config, options);
  PlannedStep step;
  step.shape.costs = costs;
  const auto specs = block_specs(in.config, o.freeze, options);
  step.blocks = planned_blocks(in.config, specs, options, mesh.shape().model);
  const int64_t mine = std::max<int64_t>(1, o.expected_batch / mesh.data_size());
  step.shape.units = std::min(o.microbatch, mine);
  step.shape.microbatches = (mine + o.microbatch - 1) / o.microbatch;
  if (in.budget && in.budget->maximum_batch) {  // as many in every step, evenly filled
    const int64_t most = (*in.budget->maximum_batch + mesh.data_size() - 1) / mesh.data_size();
    step.shape.microbatches = (most + o.microbatch - 1) / o.microbatch;
    step.shape.units = (most + step.shape.microbatches - 1) / step.shape.microbatches;
  }
  step.shape.rows_per_unit =
      in.eval ? std::max<int64_t>(1, in.eval->tokens() / in.eval->units()) : in.config.n_positions;
  step.shape.shard_ranks = mesh.shape().shard;
  step.shape.optimizer_values = optimizer_values(o, *in.rules, specs);
  if (!o.offload_noise) step.shape.optimizer_values += static_cast<double>(o.noise_bands - 1 + o.noise_blt);  // kept
  step.shape.update_bytes = optimizer_step_bytes(*in.rules, fsdp::ModelLayout(mesh, specs, options.gather_code.get()));
  step.shape.value_bytes = options.compute_dtype == at::kFloat ? 4 : 2;
  step.shape.master_bytes = options.weight_rounding ? 2 : 4;
  step.shape.head_tile_bytes = dp::head_tile_bytes(mesh.device());
  step.shape.records = !o.non_private;
  step.plan = dp::plan_step(step.blocks, step.shape, dp::MemoryBudget::parse(o.memory_budget));
  return step;
}

}  // namespace ghostshard::gpt2
