#include "bench/step_compare/sides.h"

#include <iostream>

namespace ghostshard::gpt2 {
namespace {

constexpr double kLearningRate = 1e-5;

TokenBatch random_batch(const Shape& shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  TokenBatch batch;
  const int64_t rows = shape.texts * shape.length;
  batch.ids = at::randint(0, shape.config.vocab_size, {rows}, at::kLong);
  batch.positions = at::arange(shape.length, at::kLong).repeat({shape.texts});
  batch.segments = std::make_shared<kernels::Segments>(kernels::Segments::even(shape.texts, shape.length));
  batch.loss_segments = batch.segments;
  batch.targets = at::randint(0, shape.config.vocab_size, {rows}, at::kLong);
  batch.loss_weights = at::full({rows}, 1.0 / static_cast<double>(shape.length), at::kFloat);
  return batch;
}

ModelOptions model_options(const PlannedStep& step, const Shape& shape) {
  return {.compute_dtype = shape.compute_dtype, .residency = residency_of(step.plan)};
}

dp::ClipperOptions recording_options(const Shape& shape, const PlannedStep& step, const fsdp::ShardedModel& model) {
  if (shape.recording == dp::RecordingChoice::kAutomatic) return clipper_options(step, model);
  return {.recording = shape.recording, .hold_memory_bytes = shape.hold_mib << 20};
}

}  // namespace

PlannedStep planned(fsdp::Mesh& mesh, const Shape& shape) {
  PlannedStep step;
  step.blocks =
      planned_blocks(shape.config, block_specs(shape.config, {}, {}), {.compute_dtype = shape.compute_dtype}, 1);
  step.shape = {.units = shape.texts,
                .rows_per_unit = shape.length,
                .microbatches = shape.microbatches,
                .shard_ranks = mesh.shape().shard,
                .value_bytes = static_cast<int64_t>(c10::elementSize(shape.compute_dtype)),
                .head_tile_bytes = dp::head_tile_bytes(mesh.device()),
                .costs = dp::step_costs(mesh, shape.compute_dtype, /*known=*/"", shape.measured_layer)};
  const auto budget = dp::MemoryBudget::parse(shape.memory_budget);
  step.plan = dp::plan_step(step.blocks, step.shape, budget);
  if (mesh.rank() == 0) {
    std::cerr << dp::explain_forced_price(step.plan, step.blocks, step.shape, budget);
    if (shape.explain) std::cerr << dp::explain(step.plan, step.blocks, step.shape, budget);
  }
  return step;
}

std::vector<TokenBatch> random_batches(const Shape& shape, const fsdp::Mesh& mesh) {
  std::vector<TokenBatch> batches;
  for (int64_t m = 0; m < shape.microbatches; ++m) {
    batches.push_back(random_batch(shape, 100 * mesh.rank() + m).on(mesh.device()));
  }
  return batches;
}

PrivateSide::PrivateSide(fsdp::Mesh& mesh, const Shape& shape, const PlannedStep& step)
    : key_(dp::RunKey::from_bytes({}, {})),
      plan_(dp::DpPlan::make({.units = 1 << 20,
                              .expected_batch = shape.texts * shape.microbatches * mesh.data_size(),
                              .steps = 1 << 20,
                              .noise_multiplier = accountant::NoiseMultiplier(1.0)})),
      model_(mesh, shape.config, {}, model_options(step, shape)),
      clipper_(plan_.clipper(model_.parameters(), recording_options(shape, step, model_.parameters()))),
      mechanism_(plan_.mechanism(model_.parameters(), key_, nullptr)),
      optimizer_(fsdp::make_adamw(model_.parameters(), {})) {
  initialize(model_, 1);
}

Stopwatch PrivateSide::step(const std::vector<TokenBatch>& batches) {
  Stopwatch watch(model_.parameters().device());
  const dp::StepId id{next_++};
  auto sum = clipper_.begin(mechanism_, id);
  {
    const auto resident = model_.resident();
    for (const auto& batch : batches) {
      const auto tape = clipper_.record(batch.units());
      const at::Tensor loss = model_.summed_unit_losses(batch, tape);
      watch.lap(0);
      loss.backward();
      watch.lap(1);
      if (clipper_.second_pass(sum, tape)) model_.summed_unit_losses(batch, tape).backward();
      clipper_.add(sum, tape);
      watch.lap(2);
    }
  }
  auto gradient = mechanism_.release(std::move(sum), id);
  watch.lap(3);
  optimizer_.step(std::move(gradient), kLearningRate);
  watch.lap(4);
  watch.stop();
  return watch;
}

PlainSide::PlainSide(fsdp::Mesh& mesh, const Shape& shape, const PlannedStep& step)
    : model_(mesh, shape.config, {}, model_options(step, shape)),
      accumulator_(model_.parameters(), static_cast<double>(shape.texts * shape.microbatches * mesh.data_size())),
      optimizer_(fsdp::make_adamw(model_.parameters(), {})) {
  initialize(model_, 1);
}

Stopwatch PlainSide::step(const std::vector<TokenBatch>& batches) {
  Stopwatch watch(model_.parameters().device());
  accumulator_.begin();
  {
    const auto resident = model_.resident();
    for (const auto& batch : batches) {
      const at::Tensor loss = model_.summed_unit_losses(batch, accumulator_.recorder());
      watch.lap(0);
      loss.backward();
      watch.lap(1);
    }
  }
  const auto& gradient = accumulator_.reduce();
  watch.lap(3);
  optimizer_->step(gradient, kLearningRate);
  watch.lap(4);
  watch.stop();
  return watch;
}

}  // namespace ghostshard::gpt2
