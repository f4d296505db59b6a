// Private steps of one layer on any mesh: real clipping, real noise under a fixed key, weights in the end.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dp/mechanism/optimizer.h"
#include "dp/mechanism/plan.h"
#include "dp/optimizers/coded_adamw.h"
#include "dp/recording/layers.h"
#include "dp/run/microbatch.h"
#include "fsdp/shampoo.h"
#include "fsdp/sharded_model.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {

using Weights = std::map<std::string, at::Tensor>;

inline at::Tensor start_of(at::IntArrayRef shape) {
  return (at::arange(c10::multiply_integers(shape), at::kFloat) * 0.61F).sin().mul_(0.1).view(shape);
}

inline std::vector<fsdp::BlockSpec> layer_blocks(const fsdp::Granule& granule) {
  return {{.name = "layer",
           .parameters = {{.name = "weight", .shape = {96, 40}, .granule = granule},
                          {.name = "bias", .shape = {96}, .granule = fsdp::Granule::elements(1)},
                          {.name = "out", .shape = {40, 96}, .granule = granule}}}};
}

inline dp::DpPlan plan_of_steps(int64_t steps) {
  return dp::DpPlan::make({.units = 32,
                           .expected_batch = 16,
                           .steps = steps,
                           .clip_norm = accountant::ClipNorm(0.5),
                           .noise_multiplier = accountant::NoiseMultiplier(0.8)});
}

inline std::unique_ptr<fsdp::Optimizer> optimizer_of(const std::string& rule, fsdp::ShardedModel& model) {
  if (rule == "sgd") return fsdp::make_sgd(model, {.momentum = 0.9, .weight_decay = 0.01});
  if (rule == "adamw") return fsdp::make_adamw(model, {.weight_decay = 0.01});
  if (rule == "muon") return fsdp::make_muon(model, {.weight_decay = 0.01});
  fsdp::ShampooOptions tiled;
  tiled.side = 32;
  tiled.refresh_every = 2;
  tiled.weight_decay = 0.01;
  if (rule == "shampoo") return fsdp::make_shampoo(model, tiled);
  if (rule == "soap") return fsdp::make_soap(model, tiled);
  using Bits = dp::MomentBits;
  dp::CodedAdamWOptions options{.rule = {.weight_decay = 0.01},
                                .bits = rule == "adamw8bit"    ? Bits::kEight
                                        : rule == "adamw16bit" ? Bits::kSixteen
                                                               : Bits::kThirtyTwo,
                                .least_coded = 1000};
  if (rule == "adamw_corrected") options.subtract_above = 0.1;
  return dp::make_coded_adamw(model, options);
}

inline dp::PrivateOptimizer private_optimizer(const std::string& rule, fsdp::ShardedModel& model, int64_t steps) {
  auto optimizer = optimizer_of(rule, model);
  optimizer->set_error_variance(plan_of_steps(steps).release_variance());
  return dp::PrivateOptimizer(std::move(optimizer));
}

// y = tanh(x·weightᵀ + bias)·outᵀ; unit u's row of x and the weights of its loss follow from u.
inline at::Tensor loss_of(fsdp::ShardedModel& model, std::span<const int64_t> units, const dp::RecorderPtr& recorder) {
  const auto count = static_cast<int64_t>(units.size());
  at::Tensor x = at::empty({count, 40}), r = at::empty({count, 40});
  for (int64_t i = 0; i < count; ++i) {
    const auto unit = static_cast<double>(units[static_cast<size_t>(i)]);
    x[i] = (at::arange(40, at::kFloat) * (0.3 + 0.01 * unit)).sin();
    r[i] = (at::arange(40, at::kFloat) * (0.2 + 0.02 * unit)).cos();
  }
  const auto rows = std::make_shared<kernels::Segments>(kernels::Segments::even(count, 1));
  const dp::LinearUse in{.weight = &model.parameter("weight"), .bias = &model.parameter("bias")};
  const dp::LinearUse out{.weight = &model.parameter("out")};
  return fsdp::run_block(model, 0, -1, -1, x,
                         [&](const at::Tensor& rows_in) {
                           return dp::linear(out, dp::linear(in, rows_in, rows, recorder).tanh(), rows, recorder);
                         })
      .mul(r)
      .sum();
}

// A run of `steps`. seen: is shown each release before the optimizer takes it.
inline void take_private_steps(fsdp::ShardedModel& model, dp::PrivateOptimizer& optimizer, int64_t steps,
                               const std::function<void(const dp::PrivateGradient&)>& seen = nullptr) {
  const fsdp::Mesh& mesh = model.mesh();
  const auto plan = plan_of_steps(steps);
  const auto key = key_of(8);
  auto clipper = plan.clipper(model);
  auto mechanism = plan.mechanism(model, key, nullptr);
  const auto sampler = plan.sampler(key, mesh.data_rank(), mesh.data_size());
  for (int64_t step = 0; step < steps; ++step) {
    auto sum = clipper.begin();
    for (const auto& units : sampler.draw_local({step}, 8, {})) {
      dp::add_microbatch(clipper, sum, static_cast<int64_t>(units.size()),
                         [&](const dp::RecorderPtr& recorder) { return loss_of(model, units, recorder); });
    }
    auto released = mechanism.release(std::move(sum), {step});
    if (seen) seen(released);
    optimizer.step(std::move(released), 0.01);
  }
}

inline Weights whole_of(fsdp::ShardedModel& model) {
  Weights weights;
  for (const auto& parameter : model.parameters()) weights[parameter->name()] = model.whole_parameter(*parameter);
  return weights;
}

inline Weights private_steps(const fsdp::MeshShape& shape, const fsdp::Granule& granule, const std::string& rule,
                             int64_t steps) {
  Weights weights;
  std::mutex mutex;
  run_mesh(shape, [&](fsdp::Mesh& mesh) {
    fsdp::ShardedModel model(mesh, layer_blocks(granule));
    for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, start_of(parameter->shape()));
    auto optimizer = private_optimizer(rule, model, steps);
    take_private_steps(model, optimizer, steps);
    const Weights mine = whole_of(model);
    const std::lock_guard lock(mutex);
    weights = mine;
  });
  return weights;
}

}  // namespace ghostshard::tests
