// A pair of layers cut over the model axis against the same pair on one rank in float64: outputs, input gradients, the
// clipped sum; and no unit contributes more than C, however its tokens cancel.
#include "dp/recording/tensor_parallel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/dp/single_layer.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {
namespace {

constexpr int64_t kWidth = 12, kInner = 24;

struct Values {
  at::Tensor x, r;  // [N, width] inputs and the gradients of the outputs
  std::vector<int64_t> offsets;
};

at::Tensor random(at::IntArrayRef shape, int seed, double scale = 1.0) {
  // A generator of its own: torch's is shared by the ranks' threads.
  return at::randn(shape, at::detail::createCPUGenerator(static_cast<uint64_t>(seed)), at::kFloat) * scale;
}

// Weights by name; stored [inputs, outputs] as GPT-2 does.
std::map<std::string, at::Tensor> weights() {
  return {{"in.weight", random({kWidth, kInner}, 1, 0.3)},
          {"in.bias", random({kInner}, 2, 0.3)},
          {"out.weight", random({kInner, kWidth}, 3, 0.3)},
          {"out.bias", random({kWidth}, 4, 0.3)}};
}

struct Pair {
  explicit Pair(fsdp::Mesh& mesh) : model(mesh, {block()}) {
    for (const auto& [name, value] : weights()) model.set_parameter(model.parameter(name), value);
    in = {.weight = &model.parameter("in.weight"), .bias = &model.parameter("in.bias"), .stored_transposed = true};
    out = {.weight = &model.parameter("out.weight"), .bias = &model.parameter("out.bias"), .stored_transposed = true};
  }
  static fsdp::BlockSpec block() {
    const auto first = dp::column_split(true), second = dp::row_split(true);
    return {.name = "pair",
            .parameters = {{"in.weight", {kWidth, kInner}, true, first.weight},
                           {"in.bias", {kInner}, true, first.bias},
                           {"out.weight", {kInner, kWidth}, true, second.weight},
                           {"out.bias", {kWidth}, true, second.bias}},
            .residency = fsdp::Residency::kKeep};
  }
  at::Tensor operator()(const at::Tensor& x, const dp::SegmentsPtr& segments, const dp::RecorderPtr& recorder) {
    fsdp::Mesh& mesh = model.mesh();
    const at::Tensor inner = dp::column_split_linear(mesh, in, x, segments, recorder);
    return dp::row_split_linear(mesh, out, inner.tanh(), segments, recorder);
  }
  fsdp::ShardedModel model;
  dp::LinearUse in, out;
};

// Released sum of one batch by parameter, whole, float64.
struct Result {
  std::map<std::string, at::Tensor> sum;
  at::Tensor y, dx;
};

Result run(const char* shape, const Values& v, double clip_norm, dp::RecordingChoice way) {
  std::mutex mutex;
  Result result;
  run_mesh(fsdp::MeshShape::parse(shape), [&](fsdp::Mesh& mesh) {
    Pair pair(mesh);
    const auto segments = std::make_shared<kernels::Segments>(kernels::Segments(v.offsets));
    const auto plan = plan_without_noise(segments->units(), clip_norm);
    const auto key = key_of(1);
    auto clipper = plan.clipper(pair.model, {.recording = way});
    auto mechanism = plan.mechanism(pair.model, key, nullptr);
    auto sum = clipper.begin();
    const at::Tensor x = v.x.clone().set_requires_grad(true);
    at::Tensor y;
    {
      const fsdp::Lease lease(pair.model, 0);
      const auto tape = clipper.record(segments->units());
      y = pair(x, segments, tape);
      y.mul(v.r).sum().backward();
      if (mesh.data_rank() == 0) clipper.add(sum, tape);  // the same data everywhere: once is enough
    }
    const auto gradient = mechanism.release(std::move(sum), {0});
    const std::lock_guard lock(mutex);
    if (result.y.defined()) {
      EXPECT_TRUE(at::equal(result.y, y)) << "bit-equal on all model ranks";
      EXPECT_TRUE(at::equal(result.dx, x.grad()));
    }
    // Copies: this rank's own tensors go with it, outside of the lock, and LibTorch frees them then. The count of
    // owners makes that safe, but ThreadSanitizer sees only our half of the counting.
    result.y = y.detach().clone();
    result.dx = x.grad().clone();
    const fsdp::FlatGroup& group = *pair.model.groups().front();
    for (const auto& range : group.owned()) {
      const auto& parameter = *group.parameters()[static_cast<size_t>(range.tensor)];
      auto [place, fresh] = result.sum.try_emplace(parameter.name(), at::zeros({parameter.whole_numel()}, at::kDouble));
      for (const auto& run : parameter.whole_runs(range.first, range.count)) {
        place->second.narrow(0, run.whole_first, run.count)
            .copy_(gradient.slices().shard(group).narrow(0, range.shard_offset + run.first - range.first, run.count))
            .mul_(plan.divisor());
      }
    }
  });
  return result;
}

double norm_of(const std::map<std::string, at::Tensor>& values) {
  double squared = 0;
  for (const auto& [name, value] : values) squared += value.pow(2).sum().item<double>();
  return std::sqrt(squared);
}

// The slow twin: one unit at a time in float64.
Result reference(const Values& v, double clip_norm) {
  Result result;
  std::map<std::string, at::Tensor> w;
  for (const auto& [name, value] : weights()) w[name] = value.to(at::kDouble);
  const at::Tensor x = v.x.to(at::kDouble), r = v.r.to(at::kDouble);
  const at::Tensor a = (at::mm(x, w["in.weight"]) + w["in.bias"]).tanh();
  result.y = at::mm(a, w["out.weight"]) + w["out.bias"];
  const at::Tensor g = at::mm(r, w["out.weight"].t()) * (1 - a * a);
  result.dx = at::mm(g, w["in.weight"].t());
  for (size_t u = 0; u + 1 < v.offsets.size(); ++u) {
    const auto rows = [&](const at::Tensor& t) { return t.narrow(0, v.offsets[u], v.offsets[u + 1] - v.offsets[u]); };
    std::map<std::string, at::Tensor> unit = {{"in.weight", at::mm(rows(x).t(), rows(g)).reshape(-1)},
                                              {"in.bias", rows(g).sum(0)},
                                              {"out.weight", at::mm(rows(a).t(), rows(r)).reshape(-1)},
                                              {"out.bias", rows(r).sum(0)}};
    const double norm = norm_of(unit), factor = norm > clip_norm ? clip_norm / norm : 1.0;
    for (auto& [name, value] : unit) {
      auto [place, fresh] = result.sum.try_emplace(name, value * factor);
      if (!fresh) place->second += value * factor;
    }
  }
  return result;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

struct PairCase {
  const char* mesh;
  dp::RecordingChoice way;
};
class TensorParallel : public ::testing::TestWithParam<PairCase> {};
using Choice = dp::RecordingChoice;
INSTANTIATE_TEST_SUITE_P(, TensorParallel,
                         ::testing::Values(PairCase{"1x1x1", Choice::kHold}, PairCase{"1x1x2", Choice::kHold},
                                           PairCase{"1x1x2", Choice::kReplay}, PairCase{"1x1x4", Choice::kReplay},
                                           PairCase{"1x2x2", Choice::kHold}, PairCase{"2x1x2", Choice::kReplay}),
                         [](const auto& param) {
                           return std::string(param.param.mesh) +
                                  (param.param.way == Choice::kHold ? "_hold" : "_replay");
                         });

TEST_P(TensorParallel, PairEqualsItsFloat64Twin) {
  const Values v{.x = random({20, kWidth}, 5), .r = random({20, kWidth}, 6), .offsets = {0, 3, 3, 4, 11, 20}};
  const double clip_norm = 8.0;  // some units above, some below
  const Result found = run(GetParam().mesh, v, clip_norm, GetParam().way);
  const Result expected = reference(v, clip_norm);
  // Four products of at most 24 terms, each rounded by up to sqrt(24)·2^-24 = 3e-7: in all below 2e-6.
  EXPECT_LT(distance(found.y, expected.y), 2e-6);
  EXPECT_LT(distance(found.dx, expected.dx), 2e-6);
  for (const auto& [name, value] : expected.sum) EXPECT_LT(distance(found.sum.at(name), value), 4e-6) << name;
}

TEST_P(TensorParallel, NoUnitContributesMoreThanTheClipNorm) {
  for (const double size : {1e-3, 1.0, 1e3}) {
    for (int seed = 0; seed < 2; ++seed) {
      // Tokens that cancel: the same row again and again with output gradients that change sign, almost.
      Values v{.x = random({1, kWidth}, 10 + seed).repeat({32, 1}),
               .r = random({1, kWidth}, 20 + seed).repeat({32, 1}),
               .offsets = {0, 32}};
      v.r.slice(0, 1, 32, 2).neg_();
      v.r.mul_(size).add_(random({32, kWidth}, 30 + seed, 1e-4 * size));
      const Result found = run(GetParam().mesh, v, 1e-3, GetParam().way);
      EXPECT_LE(norm_of(found.sum), 1e-3) << "size " << size << ", seed " << seed;
      EXPECT_GT(norm_of(found.sum), 0.0);
    }
  }
}

// Whatever the ranks of the model axis hold whole is released with one noise. If their rows differ, two sums under it
// would reveal their difference.
TEST(TensorParallelSums, OfWholeParametersAreOneRanksOnAll) {
  for (const char* shape : {"1x1x2", "1x2x2", "2x1x3"}) {
    std::mutex mutex;
    std::map<int64_t, at::Tensor> of_data_rank;
    run_mesh(fsdp::MeshShape::parse(shape), [&](fsdp::Mesh& mesh) {
      fsdp::ShardedModel model(mesh,
                               {{.name = "whole", .parameters = {{"bias", {7}}, {"matrix", {5, 4}}}},
                                {.name = "pair", .parameters = {{"own", {6, 3}, true, {.extent = 0}}, {"b", {3}}}}});
      const auto plan = plan_without_noise(2, 1.0);
      const auto key = key_of(1);
      auto clipper = plan.clipper(model);
      auto mechanism = plan.mechanism(model, key, nullptr);
      auto sum = clipper.begin();
      const auto tape = clipper.record(1);
      const double differing = 1 + 1e-3 * static_cast<double>(mesh.model_rank());
      for (const auto& parameter : model.parameters()) {
        auto extents = parameter->shape();
        extents.insert(extents.begin(), 1);
        tape->instantiated(*parameter, at::full(extents, 0.01 * differing));
      }
      clipper.add(sum, tape);
      const auto gradient = mechanism.release(std::move(sum), {0});
      std::vector<at::Tensor> whole;
      for (const auto& group : model.groups()) {
        for (const auto& range : group->owned()) {
          if (group->parameters()[static_cast<size_t>(range.tensor)]->cut()) continue;
          whole.push_back(gradient.slices().shard(*group).narrow(0, range.shard_offset, range.count));
        }
      }
      const at::Tensor mine = whole.empty() ? at::zeros({0}) : at::cat(whole);
      const std::lock_guard lock(mutex);
      const auto [found, first] = of_data_rank.try_emplace(mesh.data_rank(), mine.clone());
      EXPECT_TRUE(found->second.equal(mine)) << shape << ", data rank " << mesh.data_rank();
    });
  }
}

}  // namespace
}  // namespace ghostshard::tests
