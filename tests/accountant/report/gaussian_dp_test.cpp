#include "accountant/report/gaussian_dp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

using Curve = std::vector<std::pair<double, double>>;

// delta of mu-GDP by its definition, in long double: Phi(-e/mu + mu/2) - e^e·Phi(-e/mu - mu/2).
double by_definition(double mu, double epsilon) {
  const auto cdf = [](long double x) { return 0.5L * std::erfc(-x / std::sqrt(2.0L)); };
  const long double e = epsilon, m = mu;
  return static_cast<double>(cdf(-e / m + m / 2) - std::exp(e) * cdf(-e / m - m / 2));
}

struct Point {
  const char* name;
  double mu, epsilon, tolerance;  // relative; the definition itself loses digits where its terms are close
};
void PrintTo(const Point& c, std::ostream* out) { *out << c.name; }

class GdpDelta : public testing::TestWithParam<Point> {};

TEST_P(GdpDelta, IsThatOfTheDefinition) {
  const double expected = by_definition(GetParam().mu, GetParam().epsilon);
  EXPECT_NEAR(gdp_delta(GetParam().mu, GetParam().epsilon), expected, GetParam().tolerance * expected);
}

INSTANTIATE_TEST_SUITE_P(Points, GdpDelta,
                         testing::Values(Point{"AtZero", 1, 0, 1e-12}, Point{"Middle", 1, 1, 1e-12},
                                         Point{"LargeMu", 5, 3, 1e-12}, Point{"Tail", 1, 6, 1e-10},
                                         Point{"SmallMu", 0.1, 0.2, 1e-10}, Point{"SmallMuTail", 0.1, 0.5, 1e-7}),
                         [](const auto& c) { return c.param.name; });

TEST(GdpDelta, IsSoundWhereTheDefinitionOverflows) {
  const double delta = gdp_delta(40, 1000);  // a 5-sigma tail; e^1000 is no double
  EXPECT_GT(delta, 0);
  EXPECT_LT(delta, 3e-7);
}

Curve curve_of(double mu, double smallest) {
  Curve curve;
  for (double epsilon = 0.05;; epsilon += 0.05) {
    const double delta = gdp_delta(mu, epsilon);
    if (delta < smallest) return curve;
    curve.emplace_back(epsilon, delta);
  }
}

class PessimisticGdp : public testing::TestWithParam<double> {};

TEST_P(PessimisticGdp, OfAGaussiansOwnCurveIsItsMuAndAtMostThreePercentMore) {
  const double mu = pessimistic_gdp(curve_of(GetParam(), 1e-12));
  EXPECT_GE(mu, GetParam());
  EXPECT_LE(mu, 1.03 * GetParam());
}

INSTANTIATE_TEST_SUITE_P(Mus, PessimisticGdp, testing::Values(0.3, 1.0, 3.0));

TEST(PessimisticGdp, LiesAboveTheCurveBetweenItsPointsToo) {
  // The staircase that only three points prove.
  const Curve curve = {{0.5, 0.05}, {1, 0.01}, {2, 1e-4}};
  const double mu = pessimistic_gdp(curve);
  for (const auto& [epsilon, delta] : curve) EXPECT_GE(gdp_delta(mu, epsilon), delta);
  EXPECT_GE(gdp_delta(mu, 1.5), 0.01 + (1e-4 - 0.01) * std::expm1(0.5) / std::expm1(1.0));
}

TEST(PessimisticGdp, KnowsTheEnds) {
  EXPECT_EQ(pessimistic_gdp({{0, 1e-9}}), 0);
  EXPECT_EQ(pessimistic_gdp({{std::numeric_limits<double>::infinity(), 1e-9}}),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(pessimistic_gdp({}), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(pessimistic_gdp({{900, 1e-12}, {30, 1e-3}})));
}

TEST(MembershipBound, OfAGaussiansCurveIsItsTradeOff) {
  // The best test between N(0,1) and N(1,1) at 5 % false alarms: Phi(1 - 1.6449) = 0.2595.
  const double bound = membership_bound(curve_of(1, 1e-12), 0.05);
  EXPECT_GE(bound, 0.25951);
  EXPECT_LE(bound, 0.2600);
}

TEST(MembershipBound, IsChanceWithoutLeakAndOneWithoutPrivacy) {
  EXPECT_DOUBLE_EQ(membership_bound({{0, 0}}, 0.01), 0.01);
  EXPECT_EQ(membership_bound({}, 0.01), 1);
}

}  // namespace
}  // namespace ghostshard::accountant
