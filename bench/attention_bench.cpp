// Attention over texts of unequal lengths, forward and backward: groups of equal length against one grid padded to the
// longest.
//
// Arguments: texts, shortest, longest (lengths spread evenly between them), width. Items are real rows.
#include "examples/gpt2/attention.h"

#include <benchmark/benchmark.h>

#include <vector>

namespace ghostshard::gpt2 {
namespace {

constexpr int64_t kHeadSize = 64;

kernels::Segments documents(const benchmark::State& state) {
  std::vector<int64_t> offsets{0};
  const int64_t texts = state.range(0);
  for (int64_t i = 0; i < texts; ++i) {
    const int64_t place = i * 7 % texts;  // in no order
    const int64_t spread = state.range(2) - state.range(1);
    offsets.push_back(offsets.back() + state.range(1) + (texts > 1 ? spread * place / (texts - 1) : 0));
  }
  return kernels::Segments(offsets);
}

template <typename Attend>
void measure(benchmark::State& state, const kernels::Segments& segments, const Attend& attend) {
  const at::Tensor qkv = at::randn({segments.rows(), 3 * state.range(3)}).requires_grad_();
  const at::Tensor weight = at::randn({segments.rows(), state.range(3)});
  for (auto _ : state) {
    attend(qkv).backward(weight);
    qkv.mutable_grad() = at::Tensor();
  }
  state.SetItemsProcessed(state.iterations() * segments.rows());
}

void groups(benchmark::State& state) {
  const auto segments = documents(state);
  const AttentionPlan plan(segments);
  measure(state, segments, [&](const at::Tensor& qkv) { return plan.attend(qkv, state.range(3) / kHeadSize); });
  state.counters["groups"] = static_cast<double>(plan.groups().size());
}

void padded_to_the_longest(benchmark::State& state) {
  const auto segments = documents(state);
  const int64_t texts = segments.units(), longest = segments.longest(), d = state.range(3);
  std::vector<int64_t> slots;
  for (int64_t u = 0; u < texts; ++u) {
    for (int64_t t = 0; t < segments.length(u); ++t) slots.push_back(u * longest + t);
  }
  const at::Tensor slot = at::tensor(at::ArrayRef<int64_t>(slots), at::TensorOptions(at::kLong));
  measure(state, segments, [&](const at::Tensor& qkv) {
    const at::Tensor grid = at::zeros({texts * longest, 3 * d}).index_copy(0, slot, qkv);
    const auto parts = grid.view({texts, longest, 3, d / kHeadSize, kHeadSize}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor out = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    return out.transpose(1, 2).reshape({texts * longest, d}).index_select(0, slot);
  });
  state.counters["padding"] = static_cast<double>(texts * longest) / static_cast<double>(segments.rows()) - 1;
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->Args({8, 100, 100, 768})->Args({8, 90, 100, 768})->Args({8, 20, 100, 768})->Args({16, 4, 200, 256});
  bench->Args({32, 16, 512, 768})->Args({8, 64, 1024, 768});
  bench->Unit(benchmark::kMillisecond);
}
BENCHMARK(groups)->Apply(shapes);
BENCHMARK(padded_to_the_longest)->Apply(shapes);

}  // namespace
}  // namespace ghostshard::gpt2
