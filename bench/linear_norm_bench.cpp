// Both ways of recording a layer, against the weight gradient that training without norms computes.
//
// Arguments: units, rows a unit, inputs, outputs. `relative` would need two runs at once; compare the lines of one
// shape: plain is [N,p]ᵀ[N,d] in one product, hold is gradients + norms + their clipped sum, replay is Gram norms +
// the scaled product.
#include "kernels/linear_norm.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/scaled_sum.h"

namespace ghostshard::kernels {
namespace {

struct Layer {
  explicit Layer(const benchmark::State& state)
      : units(state.range(0)), rows(state.range(1)), inputs(state.range(2)), outputs(state.range(3)) {
    std::vector<int64_t> offsets;
    for (int64_t u = 0; u <= units; ++u) {
      offsets.push_back(u * rows);
    }
    segments = Segments(offsets);
    a = at::randn({units * rows, inputs}) + at::randn({1, inputs});
    g = at::randn({units * rows, outputs}) * 1e-3;
    out = at::zeros({outputs, inputs});
    factors = at::rand({units});
  }
  double flops() const { return 2.0 * static_cast<double>(units * rows) * static_cast<double>(inputs * outputs); }

  int64_t units, rows, inputs, outputs;
  Segments segments{{0}};
  at::Tensor a, g, out, factors;
};

void finish(benchmark::State& state, const Layer& layer) {
  state.counters["plain_flops"] =
      benchmark::Counter(layer.flops(), benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void plain(benchmark::State& state) {
  Layer layer(state);
  for (auto _ : state) {
    at::addmm_out(layer.out, layer.out, layer.g.t(), layer.a);
  }
  finish(state, layer);
}

void hold(benchmark::State& state) {
  Layer layer(state);
  at::Tensor held = at::empty({layer.units, layer.outputs, layer.inputs});
  NormParts parts = NormParts::zeros(layer.units);
  for (auto _ : state) {
    per_unit_gradient(layer.a, layer.g, layer.segments, held, false, parts);
    scaled_sum_held(held, layer.factors, layer.out);
  }
  finish(state, layer);
}

void gram_norms(benchmark::State& state, bool with_sum) {
  Layer layer(state);
  for (auto _ : state) {
    NormParts parts = NormParts::zeros(layer.units);
    gram_norm(layer.a, layer.g, layer.segments, parts);
    if (with_sum) scaled_sum_rows(layer.a, layer.g, layer.segments, layer.factors, layer.out, &parts);
    benchmark::DoNotOptimize(parts.value.mutable_data_ptr());
  }
  finish(state, layer);
}

void replay(benchmark::State& state) { gram_norms(state, /*with_sum=*/true); }

void gram_only(benchmark::State& state) { gram_norms(state, /*with_sum=*/false); }

void shapes(benchmark::internal::Benchmark* bench) {
  for (const auto& [units, rows] : {std::pair<int64_t, int64_t>{16, 100}, {4, 512}}) {
    bench->Args({units, rows, 768, 768});
    bench->Args({units, rows, 768, 3072});
  }
  bench->Args({64, 16, 768, 768})->Args({16, 100, 256, 256})->Unit(benchmark::kMillisecond);
}
BENCHMARK(plain)->Apply(shapes);
BENCHMARK(hold)->Apply(shapes);
BENCHMARK(replay)->Apply(shapes);
BENCHMARK(gram_only)->Apply(shapes);

}  // namespace
}  // namespace ghostshard::kernels
