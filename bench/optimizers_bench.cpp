// A step of each optimizer on one rank: nanoseconds and bytes of state a parameter, on four GPT-2-like layers.
#include <benchmark/benchmark.h>

#include "dp/optimizers/coded_adamw.h"
#include "fsdp/optimizer.h"
#include "fsdp/shampoo.h"

namespace ghostshard {
namespace {

std::vector<fsdp::BlockSpec> layers(int64_t width) {
  std::vector<fsdp::BlockSpec> blocks;
  for (int64_t layer = 0; layer < 4; ++layer) {
    const std::string name = std::to_string(layer);
    blocks.push_back({name,
                      {{.name = name + ".attention_in", .shape = {width, 3 * width}},
                       {.name = name + ".attention_out", .shape = {width, width}},
                       {.name = name + ".in", .shape = {width, 4 * width}},
                       {.name = name + ".out", .shape = {4 * width, width}},
                       {.name = name + ".bias", .shape = {4 * width}}}});
  }
  return blocks;
}

using Make = std::unique_ptr<fsdp::Optimizer> (*)(fsdp::ShardedModel&);

void step(benchmark::State& state, Make make) {
  const auto mesh = fsdp::Mesh::single();
  fsdp::ShardedModel model(*mesh, layers(state.range(0)));
  const auto optimizer = make(model);
  optimizer->set_error_variance(1e-4);
  fsdp::ShardBuffers gradient(model);
  for (const auto& group : model.groups()) {
    const at::Tensor shard = gradient.shard(*group);
    shard.copy_(at::randn(shard.sizes()).mul_(0.01));
  }
  for (auto _ : state) optimizer->step(gradient, 1e-4);
  const auto parameters = static_cast<double>(model.parameter_count());
  state.counters["s_per_parameter"] = benchmark::Counter(static_cast<double>(state.iterations()) * parameters,
                                                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["state_bytes_per_parameter"] = static_cast<double>(optimizer->state_bytes()) / parameters;
}

void adamw(benchmark::State& state) {
  step(state, [](fsdp::ShardedModel& model) { return fsdp::make_adamw(model, {}); });
}
void adamw8bit(benchmark::State& state) {
  step(state, [](fsdp::ShardedModel& model) { return dp::make_coded_adamw(model, {}); });
}
void adamw_corrected(benchmark::State& state) {
  step(state, [](fsdp::ShardedModel& model) {
    return dp::make_coded_adamw(model, {.bits = dp::MomentBits::kThirtyTwo, .subtract_above = 0.1});
  });
}
void muon(benchmark::State& state) {
  step(state, [](fsdp::ShardedModel& model) { return fsdp::make_muon(model, {}); });
}
void adamw16bit(benchmark::State& state) {
  step(state,
       [](fsdp::ShardedModel& model) { return dp::make_coded_adamw(model, {.bits = dp::MomentBits::kSixteen}); });
}
void shampoo(benchmark::State& state) {
  step(state, [](fsdp::ShardedModel& model) { return fsdp::make_shampoo(model, {}); });
}
void soap(benchmark::State& state) {
  step(state, [](fsdp::ShardedModel& model) { return fsdp::make_soap(model, {}); });
}
BENCHMARK(adamw)->Arg(256)->Arg(768);
BENCHMARK(adamw8bit)->Arg(256)->Arg(768);
BENCHMARK(adamw_corrected)->Arg(256)->Arg(768);
BENCHMARK(adamw16bit)->Arg(256)->Arg(768);
BENCHMARK(muon)->Arg(256)->Arg(768);
BENCHMARK(shampoo)->Arg(256)->Arg(768);
BENCHMARK(soap)->Arg(256)->Arg(768);

}  // namespace
}  // namespace ghostshard
