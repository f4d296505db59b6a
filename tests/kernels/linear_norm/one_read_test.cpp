// A unit's row norms and Gram matrix from one read, beside the two that read twice.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/host/row_products.h"
#include "kernels/host/unit_norms.h"
#include "kernels/norm_parts.h"

namespace ghostshard::tests {
namespace {

// Rows and columns: around the tiles of four, the lanes of 16 and the chunks of 768 columns.
class OneRead : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  at::Tensor rows() const {
    at::manual_seed(5);
    const auto [count, columns] = GetParam();
    return at::randn({count, columns});
  }
};
INSTANTIATE_TEST_SUITE_P(, OneRead,
                         testing::Combine(testing::Values(1, 3, 100, 128), testing::Values(0, 1, 17, 768, 769, 5003)));

TEST_P(OneRead, GivesTheProductsBitForBit) {
  const at::Tensor x = rows();
  const int64_t count = x.size(0), columns = x.size(1);
  std::vector<float> once(static_cast<size_t>(count * count)), twice = once;
  std::vector<double> squares(static_cast<size_t>(count));
  kernels::row_products_and_squares(x.const_data_ptr<float>(), count, columns, columns, once.data(), squares.data());
  kernels::row_products(x.const_data_ptr<float>(), count, x.const_data_ptr<float>(), count, columns, columns, 0,
                        twice.data(), count);
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t t = 0; t <= s; ++t) {
      ASSERT_EQ(once[static_cast<size_t>(s * count + t)], twice[static_cast<size_t>(s * count + t)]) << s << ' ' << t;
    }
  }
}

TEST_P(OneRead, GivesNormsThatAreRoundedUpAndNoMore) {
  const at::Tensor x = rows();
  const kernels::MeasuredRows measured(x, /*with_gram=*/true);
  const std::vector<double> apart = kernels::row_norms_rounded_up(x);
  // In extended precision, which rounds 2^-11 times as much.
  const float* value = x.const_data_ptr<float>();
  for (int64_t s = 0; s < x.size(0); ++s) {
    long double exact = 0;
    for (int64_t c = 0; c < x.size(1); ++c) {
      const auto v = static_cast<long double>(value[s * x.size(1) + c]);
      exact += v * v;
    }
    exact = std::sqrt(exact);
    const double norm = measured.norms()[static_cast<size_t>(s)];
    EXPECT_GE(norm, exact * (1 - 0x1p-60L)) << s;
    EXPECT_LE(norm, exact * (1 + 3 * kernels::gamma_float64(kernels::square_terms(x.size(1)) + 4))) << s;
    EXPECT_NEAR(norm, apart[static_cast<size_t>(s)], 1e-11 * norm) << s;
  }
}

TEST_P(OneRead, GivesTheNormOfTheUnit) {
  const at::Tensor a = rows(), g = rows().flip(0).contiguous();
  const kernels::MeasuredRows a_once(a, true), g_once(g, true), a_twice(a, false), g_twice(g, false);
  ASSERT_NE(a_once.rows().gram.products, nullptr);
  ASSERT_EQ(a_twice.rows().gram.products, nullptr);
  const auto once = kernels::gram_product_sum(a_once.rows(), g_once.rows(), at::kFloat);
  const auto twice = kernels::gram_product_sum(a_twice.rows(), g_twice.rows(), at::kFloat);
  EXPECT_EQ(once.value, twice.value);
  EXPECT_NEAR(once.error, twice.error, 1e-9 * twice.error);
}

TEST(OneReadOnly, IsForRowsWhoseGramMatrixIsOneTile) {
  EXPECT_EQ(kernels::MeasuredRows(at::ones({129, 5}), true).rows().gram.products, nullptr);
  EXPECT_EQ(kernels::MeasuredRows(at::ones({12, 5}, at::kDouble), true).rows().gram.products, nullptr);
  EXPECT_EQ(kernels::MeasuredRows(at::ones({0, 5}), true).rows().gram.products, nullptr);
}

TEST(OneReadOnly, LeavesZeroRowsExactlyZeroAndLargeOnesFinite) {
  const at::Tensor x = at::zeros({3, 1000});
  x[1].fill_(1e30F);  // its square is beyond float32
  const kernels::MeasuredRows measured(x, true);
  EXPECT_EQ(measured.norms()[0], 0);
  EXPECT_NEAR(measured.norms()[1] / (1e30 * std::sqrt(1000.0)), 1, 1e-6);
}

}  // namespace
}  // namespace ghostshard::tests
