#include "examples/gpt2/step_model.h"

#include "fsdp/durable_file.h"
#include "fsdp/regular_file.h"

namespace ghostshard::gpt2 {
namespace {

constexpr const char* kCostsName = "step_costs.json";

int64_t elements(const fsdp::ParameterSpec& parameter, int64_t model_ranks) {
  int64_t product = 1;
  for (const int64_t extent : parameter.shape) product *= extent;
  return parameter.split.cuts() ? product / model_ranks : product;
}

// Matrices that rows are multiplied with; a table that is only looked up records rows and no matrix.
bool is_product(const fsdp::ParameterSpec& parameter, const Config& config) {
  if (parameter.shape.size() != 2 || !parameter.trainable) return false;
  if (parameter.name == "transformer.wpe.weight") return false;
  return parameter.name != "transformer.wte.weight" || config.tie_word_embeddings;
}

// Of all ranks' messages of a block, if its weights travel in codes.
double message_bytes(const fsdp::BlockSpec& spec, const fsdp::GatherCode& code, double value_bytes) {
  double bytes = 0;
  for (const auto& parameter : spec.parameters) {
    const int64_t count = elements(parameter, 1);
    bytes +=
        code.takes(parameter.shape) ? static_cast<double>(code.bytes(count)) : value_bytes * static_cast<double>(count);
  }
  return bytes;
}

}  // namespace

std::vector<dp::PlannedBlock> planned_blocks(const Config& config, const std::vector<fsdp::BlockSpec>& specs,
                                             const ModelOptions& options, int64_t model_ranks) {
  const auto value_bytes = static_cast<double>(options.compute_dtype == at::kFloat ? 4 : 2);
  const double d = static_cast<double>(config.n_embd), inner = static_cast<double>(config.n_inner);
  const double ranks = static_cast<double>(model_ranks);
  // A transformer layer's operations save for backward: both norms' inputs and outputs, the second sum; queries, keys,
  // values and the mixed rows; the rows before and after the activation. Its backward needs at once: gradients of the
  // widest rows, twice, and of the residual stream.
  const double layer_bytes = value_bytes * (5 * d + (4 * d + 2 * inner) / ranks);
  const double working = value_bytes * (2 * inner / ranks + d);
  std::vector<dp::PlannedBlock> blocks;
  for (size_t u = 0; u < specs.size(); ++u) {
    const fsdp::BlockSpec& spec = specs[u];
    dp::PlannedBlock block{.name = spec.name, .always_gathered = spec.residency == fsdp::Residency::kKeep};
    if (options.gather_code) block.message_bytes = message_bytes(spec, *options.gather_code, value_bytes);
    for (const auto& parameter : spec.parameters) {
      const int64_t count = elements(parameter, model_ranks);
      block.parameters += count;
      block.trainable += parameter.trainable ? count : 0;
      if (!is_product(parameter, config)) continue;
      // The head is stored [outputs, inputs], all others the other way round.
      const bool head = parameter.name == "lm_head.weight" || parameter.name == "transformer.wte.weight";
      const int64_t outputs = parameter.shape[head ? 0 : 1];
      block.matrices.push_back(
          {.parameter = parameter.name, .shape = {.inputs = count / outputs, .outputs = outputs}, .head = head});
    }
    const bool end = u + 1 == specs.size();
    if (u > 0 && !end) {
      block.activation_bytes = options.activation_checkpointing ? value_bytes * d : layer_bytes;
      block.working_bytes = working + (options.activation_checkpointing ? layer_bytes : 0);
    } else if (end) {
      block.activation_bytes = 4 * static_cast<double>(config.vocab_size) + value_bytes * 2 * d;  // probabilities
      block.working_bytes = value_bytes * 2 * d;
    }
    blocks.push_back(std::move(block));
  }
  // A tied head is computed at the end, with a matrix of the first block.
  if (config.tie_word_embeddings && !blocks.empty() && !blocks.front().matrices.empty()) {
    blocks.back().matrices.push_back(blocks.front().matrices.front());
    blocks.back().matrices.back().used_twice = true;
    blocks.front().matrices.erase(blocks.front().matrices.begin());
  }
  return blocks;
}

dp::StepCosts costs_of_run(fsdp::Mesh& mesh, const std::filesystem::path& folder, at::ScalarType rows, bool resumed) {
  std::string known;
  if (mesh.rank() == 0) {
    std::error_code unusable;  // read_inputs() says what is wrong with the folder
    if (std::filesystem::exists(folder / kCostsName, unusable)) known = fsdp::read_text(folder / kCostsName);
    if (known.empty() && resumed && mesh.device().is_cpu()) known = dp::StepCosts().to_json();
  }
  return dp::step_costs(mesh, rows, known);
}

void keep_costs(const fsdp::Mesh& mesh, const std::filesystem::path& folder, const PlannedStep& step) {
  if (mesh.rank() != 0) return;
  dp::StepShape anywhere = step.shape;
  anywhere.costs.room_bytes = dp::StepCosts().room_bytes;
  const bool room_decided = dp::plan_step(step.blocks, anywhere, {}).peak_bytes() > step.shape.costs.room_bytes;
  if (mesh.device().is_cpu() && !room_decided) return;
  const dp::StepCosts& kept = room_decided ? step.shape.costs : anywhere.costs;
  fsdp::write_durably(folder / kCostsName, kept.to_json() + '\n');
}

std::vector<fsdp::Residency> residency_of(const dp::StepPlan& plan) {
  std::vector<fsdp::Residency> residency;
  for (const auto& choice : plan.blocks) residency.push_back(choice.residency);
  return residency;
}

dp::ClipperOptions clipper_options(const PlannedStep& step, const fsdp::ShardedModel& model) {
  const auto& [blocks, shape, plan] = step;
  dp::ClipperOptions options;
  options.planned_recording.resize(model.parameters().size());
  for (size_t u = 0; u < blocks.size(); ++u) {
    for (size_t m = 0; m < blocks[u].matrices.size(); ++m) {
      options.planned_recording[model.parameter(blocks[u].matrices[m].parameter).id()] = plan.blocks[u].recording[m];
    }
  }
  options.streamed.resize(model.groups().size(), false);
  for (const auto& group : model.groups()) {
    if (!group->trainable()) continue;
    const auto block = static_cast<size_t>(group->block());
    options.streamed[static_cast<size_t>(group->index())] = plan.blocks[block].gradients == dp::GradientFlow::kStreamed;
  }
  return options;
}

}  // namespace ghostshard::gpt2
