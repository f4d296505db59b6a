#include "accountant/tradeoff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ghostshard::accountant {
namespace {

double phi(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

// The normal quantile by bisection.
double quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) (phi((low + high) / 2) < p ? low : high) = (low + high) / 2;
  return low;
}

// Neighbours of one Gaussian release are N(0, sigma²) and N(1, sigma²): the Neyman-Pearson test has power
// Phi(Phi^-1(rate) + 1/sigma), at every rate, below and above one half.
TEST(Tradeoff, OfGaussiansIsTheNeymanPearsonTest) {
  for (const double sigma : {0.5, 2.0, 20.0}) {
    const auto engine = make_accountant("contour", Adjacency::kZeroOut);
    engine->compose(GaussianEvent{NoiseMultiplier(2 * sigma)}, 4);  // together sigma
    for (const double rate : {1e-6, 0.001, 0.1, 0.5, 0.9}) {
      const double power = phi(quantile(rate) + 1 / sigma);
      const double found = most_powerful_test(*engine, rate).at_most;
      EXPECT_GE(found, power * (1 - 1e-13)) << sigma << ' ' << rate;
      EXPECT_LE(found, power * (1 + 1e-6)) << sigma << ' ' << rate;
    }
  }
}

// One sampled release: removing a unit, the test of power (1-q)·rate + q·Phi(Phi^-1(rate) + 1/sigma) exists.
TEST(Tradeoff, OfASampledGaussianIsAtLeastThatOfItsBestTest) {
  const auto engine = make_accountant("contour", Adjacency::kAddOrRemove);
  engine->compose(PoissonGaussianEvent{SamplingRate(0.2), NoiseMultiplier(0.7)}, 1);
  for (const double rate : {0.001, 0.05, 0.3}) {
    const double power = 0.8 * rate + 0.2 * phi(quantile(rate) + 1 / 0.7);
    const double found = most_powerful_test(*engine, rate).at_most;
    EXPECT_GE(found, power * (1 - 1e-13)) << rate;
    EXPECT_LE(found, power * 1.15) << rate;  // the curve is symmetric, this test is one of two
  }
}

TEST(Tradeoff, OfNothingIsTheRateItself) {
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  EXPECT_NEAR(most_powerful_test(*engine, 0.01).at_most, 0.01, 1e-15);
}

TEST(Tradeoff, RefusesRatesThatAreNone) {
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  for (const double rate : {0.0, 1.0, -0.1, std::nan("")})
    EXPECT_THROW((void)most_powerful_test(*engine, rate), std::invalid_argument) << rate;
}

}  // namespace
}  // namespace ghostshard::accountant
