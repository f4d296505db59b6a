// A linear layer whose rows of outputs begin anywhere in a cache line: on a CPU it forms them by tiles.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

constexpr int64_t kInputs = 5;

// Outputs: fewer than are formed by tiles, a whole number of tiles and not; stored [p,d] and [d,p]; with a bias and
// not.
class WideOutputs : public testing::TestWithParam<std::tuple<int64_t, bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(, WideOutputs,
                         testing::Combine(testing::Values(2559, 2560, 2563, 3199), testing::Bool(), testing::Bool()));

TEST_P(WideOutputs, AreThoseOfTheWholeProduct) {
  const auto [outputs, stored_transposed, has_bias] = GetParam();
  at::manual_seed(1);
  const auto mesh = lone_mesh();
  const std::vector<int64_t> shape = stored_transposed ? std::vector{kInputs, outputs} : std::vector{outputs, kInputs};
  fsdp::ShardedModel model(*mesh, {{"block", {{"weight", shape}, {"bias", {outputs}}}, fsdp::Residency::kKeep}},
                           at::kFloat);
  const at::Tensor weight = at::randn(shape), bias = at::randn({outputs}), x = at::randn({7, kInputs});
  model.set_parameter(model.parameter("weight"), weight);
  model.set_parameter(model.parameter("bias"), bias);
  const dp::LinearUse use{.weight = &model.parameter("weight"),
                          .bias = has_bias ? &model.parameter("bias") : nullptr,
                          .stored_transposed = stored_transposed};
  const fsdp::Lease lease(model, 0);
  const at::NoGradGuard no_grad;
  const auto segments = std::make_shared<kernels::Segments>(kernels::Segments::even(7));
  const at::Tensor y = dp::linear(use, there(x), segments, nullptr).cpu();
  at::Tensor expected = at::mm(x.to(at::kDouble), (stored_transposed ? weight : weight.t()).to(at::kDouble));
  if (has_bias) expected.add_(bias);
  EXPECT_TRUE(y.is_contiguous());
  // |x|·|w| of five terms is below 50, and a sum of six float32 terms errs by at most six roundings of it.
  EXPECT_LT((y - expected).abs().max().item<double>(), 50 * 6 * 0x1p-24);
}

}  // namespace
}  // namespace ghostshard::tests
