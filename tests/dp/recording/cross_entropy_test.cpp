#include "dp/recording/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace ghostshard::dp {
namespace {

constexpr int64_t kIgnored = -100;

struct Case {
  const char* name;
  int64_t rows, classes;
  double scale;  // of the logits
  at::ScalarType dtype;
};

class CrossEntropy : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    const Case& c = GetParam();
    logits_ = (at::randn({c.rows, c.classes}, at::kDouble) * c.scale).to(c.dtype);
    targets_ = at::randint(c.classes, {c.rows}, at::kLong);
    if (c.rows > 2) targets_[1] = kIgnored;
  }
  // The absolute tolerance of a loss: x - max is rounded once, exp and log err by an ulp or two, the sum by
  // gamma(classes).
  double tolerance() const {
    // For float64 the truth is as far off.
    const double unit = GetParam().dtype == at::kDouble ? 0x1p-52 : 0x1p-24;
    const double range = logits_.numel() == 0 ? 0 : 2 * logits_.abs().max().item<double>();
    return unit * (2 * range + static_cast<double>(GetParam().classes) + 8);
  }
  at::Tensor logits_, targets_;
};

INSTANTIATE_TEST_SUITE_P(, CrossEntropy,
                         testing::Values(Case{"one_row", 1, 3, 1, at::kFloat}, Case{"rows", 33, 1000, 1, at::kFloat},
                                         Case{"sharp", 33, 1000, 60, at::kFloat},  // most probabilities underflow
                                         Case{"one_class", 5, 1, 1, at::kFloat}, Case{"none", 0, 7, 1, at::kFloat},
                                         Case{"float64", 9, 40, 3, at::kDouble},
                                         Case{"bfloat16", 33, 100, 3, at::kBFloat16},
                                         Case{"float16", 33, 100, 3, at::kHalf}),
                         [](const auto& test) { return test.param.name; });

TEST_P(CrossEntropy, and_its_gradient_are_those_of_float64) {
  const at::Tensor exact = logits_.to(at::kDouble).clone().requires_grad_(true);
  const at::Tensor expected = at::cross_entropy_loss(exact, targets_, {}, at::Reduction::None, kIgnored);
  const at::Tensor x = logits_.clone().requires_grad_(true);
  const at::Tensor losses = cross_entropy(x, targets_, kIgnored);
  const bool wide = GetParam().dtype == at::kDouble;
  EXPECT_EQ(losses.scalar_type(), wide ? at::kDouble : at::kFloat);
  EXPECT_TRUE(at::allclose(losses.to(at::kDouble), expected, wide ? 0x1p-52 : 0x1p-23, tolerance()))
      << (losses - expected).abs().max();

  const at::Tensor weights = at::rand({GetParam().rows}, at::kDouble).to(losses.scalar_type());
  (losses * weights).sum().backward();
  (expected * weights).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), GetParam().dtype);
  // A gradient is at most 1, and errs as much as its probability; narrow ones are rounded once more.
  const double rounding = x.dtype() == at::kBFloat16 ? 0x1p-8 : x.dtype() == at::kHalf ? 0x1p-11 : 0;
  EXPECT_TRUE(at::allclose(x.grad().to(at::kDouble), exact.grad(), rounding, tolerance() + rounding * 0x1p-14))
      << (x.grad() - exact.grad()).abs().max();
}

TEST_P(CrossEntropy, gives_the_same_gradient_again_where_the_graph_is_kept) {
  const at::Tensor x = logits_.clone().requires_grad_(true);
  const at::Tensor losses = cross_entropy(x, targets_, kIgnored);
  const auto gradient = [&](bool keep) {
    return torch::autograd::grad({losses.sum()}, {x}, /*grad_outputs=*/{}, /*retain_graph=*/keep).at(0);
  };
  const at::Tensor first = gradient(true);
  const at::Tensor before = first.clone();
  const at::Tensor second = gradient(false);
  EXPECT_TRUE(at::equal(first, before)) << "the last backward must not reach into what an earlier one gave";
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_TRUE(at::equal(x.detach(), logits_)) << "logits belong to whoever made them";
}

TEST(CrossEntropyOfRareTargets, does_not_saturate) {
  const at::Tensor x = at::tensor({0.0F, -120.0F, 0.0F, -std::numeric_limits<float>::infinity()}).view({2, 2});
  const at::Tensor losses = cross_entropy(x, at::ones({2}, at::kLong), kIgnored);
  EXPECT_EQ(losses[0].item<float>(), 120.0F);
  EXPECT_EQ(losses[1].item<float>(), std::numeric_limits<float>::infinity());
}

TEST(CrossEntropyOfNaN, is_NaN_in_its_row_alone) {
  const at::Tensor x = at::zeros({2, 3}).requires_grad_(true);
  {
    const at::NoGradGuard no_grad;
    x[0][1] = std::numeric_limits<float>::quiet_NaN();
  }
  const at::Tensor losses = cross_entropy(x, at::zeros({2}, at::kLong), kIgnored);
  losses.sum().backward();
  EXPECT_TRUE(losses[0].isnan().item<bool>());
  EXPECT_TRUE(x.grad()[0].isnan().all().item<bool>());
  EXPECT_TRUE(x.grad()[1].isfinite().all().item<bool>());
}

TEST(CrossEntropyRefuses, what_does_not_fit) {
  const at::Tensor x = at::zeros({2, 3});
  const auto targets = [](int64_t first) { return at::tensor({first, int64_t{0}}, at::kLong); };
  EXPECT_THROW(cross_entropy(x, targets(3), kIgnored), c10::IndexError);
  EXPECT_THROW(cross_entropy(x, targets(-1), kIgnored), c10::IndexError);
  EXPECT_NO_THROW(cross_entropy(x, targets(-1), -1));
  EXPECT_THROW(cross_entropy(x, targets(0).to(at::kInt), kIgnored), c10::ValueError);
  EXPECT_THROW(cross_entropy(x, at::zeros({3}, at::kLong), kIgnored), c10::ValueError);
  EXPECT_THROW(cross_entropy(x.to(at::kLong), targets(0), kIgnored), c10::ValueError);
  EXPECT_THROW(cross_entropy(x.view({2, 3, 1}), targets(0), kIgnored), c10::ValueError);
}

}  // namespace
}  // namespace ghostshard::dp
