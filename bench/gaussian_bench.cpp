// Noise: nanoseconds an element and bytes a second of the buffer it is added to.
#include "kernels/gaussian.h"

#include <benchmark/benchmark.h>

#include <vector>

namespace ghostshard::kernels {
namespace {

void add_gaussian_elements(benchmark::State& state) {
  std::vector<float> out(static_cast<size_t>(state.range(0)), 0.0f);
  const ChaChaKey key{1, 2, 3};
  for (auto _ : state) {
    add_gaussian(key, 7, 3, 0.5f, out);
    benchmark::DoNotOptimize(out.data());
  }
  const double elements = static_cast<double>(state.iterations()) * static_cast<double>(state.range(0));
  state.counters["s_per_element"] =
      benchmark::Counter(elements, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}
BENCHMARK(add_gaussian_elements)->Arg(1 << 10)->Arg(1 << 16)->Arg(1 << 24);

void uniform_words_elements(benchmark::State& state) {
  std::vector<uint64_t> out(static_cast<size_t>(state.range(0)));
  const ChaChaKey key{1, 2, 3};
  for (auto _ : state) {
    uniform_words(key, 7, 3, out);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 8);
}
BENCHMARK(uniform_words_elements)->Arg(1 << 16);

}  // namespace
}  // namespace ghostshard::kernels
