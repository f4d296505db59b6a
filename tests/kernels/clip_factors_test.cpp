// Factors never let a product exceed the limit, and are the same bits on every device.
#include "kernels/clip_factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/clip_factors/formula.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> awkward_bounds() {
  std::vector<double> bounds{0.0,
                             1e-300,
                             4.9e-324,
                             1.0,
                             4.0,
                             4.0 + 0x1p-50,
                             1e300,
                             1e308,
                             std::numeric_limits<double>::max(),
                             kInf,
                             std::numeric_limits<double>::quiet_NaN(),
                             -1.0,
                             9.0,
                             0x1p-2,
                             3.0,
                             1e30,
                             1e80};
  at::manual_seed(3);
  const at::Tensor random = at::randn({1000}, at::kDouble).mul_(8).exp_();
  for (int64_t i = 0; i < random.numel(); ++i) bounds.push_back(random[i].item<double>());
  return bounds;
}

TEST(ClipFactors, NeverLetANormExceedTheLimitAndLoseNoMoreThan2ToMinus21) {
  for (const double limit : {2.0, 1e-3, 0.1, 7e5}) {
    const auto bounds = awkward_bounds();
    const at::Tensor factors = clip_factors(there(at::tensor(bounds, at::kDouble)), limit).cpu();
    ASSERT_EQ(factors.scalar_type(), at::kFloat);
    for (size_t u = 0; u < bounds.size(); ++u) {
      const double factor = factors[static_cast<int64_t>(u)].item<float>(), norm = std::sqrt(bounds[u]);
      if (!std::isfinite(norm)) {
        EXPECT_EQ(factor, 0) << bounds[u];
        continue;
      }
      const double exact = norm > limit ? limit / norm : 1.0;
      // Shrunk by 2^-22, which the rounding of the product cannot undo; then one step towards zero.
      EXPECT_LE(factor, exact * (1 - 0x1p-22) * (1 + 0x1p-52)) << bounds[u];
      if (exact > 1e-37) {
        EXPECT_GE(factor, exact * (1 - 0x1p-21)) << bounds[u];
      }
    }
  }
}

TEST(ClipFactors, AreTheSameBitsOnEveryDevice) {
  const auto bounds = awkward_bounds();
  at::Tensor expected = at::empty({static_cast<int64_t>(bounds.size())}, at::kFloat);
  for (size_t u = 0; u < bounds.size(); ++u) expected[static_cast<int64_t>(u)] = clip_factor(bounds[u], 0.7);
  const at::Tensor factors = clip_factors(there(at::tensor(bounds, at::kDouble)), 0.7);
  EXPECT_EQ(factors.device(), backend::device());
  EXPECT_TRUE(oracle::same_bits(factors, expected));
}

TEST(ClipFactors, TakeNoUnitsAndRefuseWhatIsNoBoundOrLimit) {
  EXPECT_EQ(clip_factors(there(at::empty({0}, at::kDouble)), 1.0).numel(), 0);
  EXPECT_THROW(clip_factors(there(at::ones({3})), 1.0), std::invalid_argument);
  EXPECT_THROW(clip_factors(there(at::ones({3, 1}, at::kDouble)), 1.0), std::invalid_argument);
  for (const double limit : {0.0, -1.0, kInf, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(clip_factors(there(at::ones({3}, at::kDouble)), limit), std::invalid_argument);
  }
}

}  // namespace
}  // namespace ghostshard::kernels
