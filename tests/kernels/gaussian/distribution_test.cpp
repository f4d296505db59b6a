// Noise is distributed as independent standard normals. The stream is fixed, so these tests cannot flake; a fair stream
// exceeds the limits once in 10^5.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "tests/kernels/gaussian/noise.h"

namespace ghostshard::kernels {
namespace {

constexpr size_t kSample = size_t{1} << 20;
constexpr double kSigmas = 4.4;

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

struct MomentCase {
  const char* name;
  int power;
  double expected;
  double variance;  // of z^power
};

class Moment : public testing::TestWithParam<MomentCase> {};

TEST_P(Moment, OfAMillion) {
  const MomentCase& c = GetParam();
  double sum = 0;
  for (const float z : gaussian(2, 0, kSample)) {
    sum += std::pow(static_cast<double>(z), c.power);
  }
  EXPECT_NEAR(sum / kSample, c.expected, kSigmas * std::sqrt(c.variance / kSample));
}

INSTANTIATE_TEST_SUITE_P(, Moment,
                         testing::Values(MomentCase{"Mean", 1, 0, 1}, MomentCase{"Variance", 2, 1, 2},
                                         MomentCase{"Skew", 3, 0, 15}, MomentCase{"Kurtosis", 4, 3, 96},
                                         MomentCase{"Sixth", 6, 15, 10395 - 225}),
                         [](const auto& test) { return test.param.name; });

TEST(GaussianSample, PassesKolmogorovSmirnov) {
  std::vector<float> z = gaussian(4, 0, kSample);
  std::ranges::sort(z);
  double distance = 0;
  for (size_t i = 0; i < z.size(); ++i) {
    const double p = normal_cdf(z[i]);
    distance = std::max({distance, p - static_cast<double>(i) / kSample, static_cast<double>(i + 1) / kSample - p});
  }
  // P(sqrt(n)·D > x) is about 2·exp(−2x²): 1e-5 at 2.47.
  EXPECT_LT(distance * std::sqrt(static_cast<double>(kSample)), 2.47);
}

struct TailCase {
  const char* name;
  double beyond;
};

class Tail : public testing::TestWithParam<TailCase> {};

TEST_P(Tail, HoldsItsShareOnBothSides) {
  constexpr size_t kMany = size_t{1} << 23;
  const double expected = kMany * normal_cdf(-GetParam().beyond);
  double above = 0, below = 0;
  for (const float z : gaussian(6, 0, kMany)) {
    above += z > GetParam().beyond;
    below += z < -GetParam().beyond;
  }
  EXPECT_NEAR(above, expected, kSigmas * std::sqrt(expected) + 3);
  EXPECT_NEAR(below, expected, kSigmas * std::sqrt(expected) + 3);
}

INSTANTIATE_TEST_SUITE_P(, Tail,
                         testing::Values(TailCase{"OneSigma", 1}, TailCase{"Three", 3}, TailCase{"Four", 4},
                                         TailCase{"Five", 5}),
                         [](const auto& test) { return test.param.name; });

struct LagCase {
  const char* name;
  uint32_t parameter;  // against parameter 8
  size_t lag;
};

class Independence : public testing::TestWithParam<LagCase> {};

TEST_P(Independence, OfValuesAndOfSquares) {
  const std::vector<float> x = gaussian(8, 0, kSample);
  const std::vector<float> y = gaussian(GetParam().parameter, GetParam().lag, kSample);
  double product = 0, squares = 0;
  for (size_t i = 0; i < kSample; ++i) {
    product += static_cast<double>(x[i]) * y[i];
    squares += (static_cast<double>(x[i]) * x[i] - 1) * (static_cast<double>(y[i]) * y[i] - 1);
  }
  EXPECT_NEAR(product / kSample, 0, kSigmas / std::sqrt(static_cast<double>(kSample)));
  EXPECT_NEAR(squares / kSample, 0, kSigmas * 2 / std::sqrt(static_cast<double>(kSample)));
}

INSTANTIATE_TEST_SUITE_P(, Independence,
                         testing::Values(LagCase{"NextElement", 8, 1}, LagCase{"NextPair", 8, 2},
                                         LagCase{"NextBlock", 8, 8}, LagCase{"NextParameter", 9, 0},
                                         LagCase{"NextParameterShifted", 9, 8}, LagCase{"ZeroParameter", 0, 0}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ghostshard::kernels
