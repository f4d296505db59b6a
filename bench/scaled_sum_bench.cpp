// The clipped sum alone: bytes a second of the held gradients, and of the rows.
//
// Arguments: units, rows a unit, inputs, outputs.
#include "kernels/scaled_sum.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/linear_norm.h"

namespace ghostshard::kernels {
namespace {

void held(benchmark::State& state) {
  const at::Tensor gradients = at::randn({state.range(0), state.range(3), state.range(2)});
  const at::Tensor factors = at::rand({state.range(0)});
  at::Tensor out = at::zeros({state.range(3), state.range(2)});
  for (auto _ : state) {
    scaled_sum_held(gradients, factors, out);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(gradients.nbytes()));
}

void rows(benchmark::State& state) {
  std::vector<int64_t> offsets;
  for (int64_t u = 0; u <= state.range(0); ++u) {
    offsets.push_back(u * state.range(1));
  }
  const Segments segments(offsets);
  const at::Tensor a = at::randn({segments.rows(), state.range(2)}), g = at::randn({segments.rows(), state.range(3)});
  const at::Tensor factors = at::rand({state.range(0)});
  at::Tensor out = at::zeros({state.range(3), state.range(2)});
  NormParts parts = NormParts::zeros(state.range(0));
  gram_norm(a, g, segments, parts);
  for (auto _ : state) {
    scaled_sum_rows(a, g, segments, factors, out, &parts);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(a.nbytes() + g.nbytes()));
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->Args({16, 100, 768, 768})->Args({16, 100, 768, 3072})->Args({4, 512, 768, 768})->Args({64, 16, 768, 768});
  bench->Unit(benchmark::kMillisecond);
}
BENCHMARK(held)->Apply(shapes);
BENCHMARK(rows)->Apply(shapes);

}  // namespace
}  // namespace ghostshard::kernels
