// The moment on the real axis, on which every Chernoff bound and the choice of every line rests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {
namespace {

// E[w^p] - 1 in long double, by a mesh many times finer and wider than is needed, in the form where w - 1 is taken out.
long double excess(Direction direction, SampledGaussian release, double c) {
  const long double q = release.q;
  const long double sigma = release.sigma;
  const long double p =
      direction == Direction::kRemove ? 1 + static_cast<long double>(c) : -static_cast<long double>(c);
  const long double h = std::min(sigma * sigma / 8, sigma / 12);
  const long double low = -24 * sigma - (direction == Direction::kAdd ? c : 0);
  const long double high = 1 + 24 * sigma + (direction == Direction::kRemove ? c : 0);
  long double sum = 0;
  for (long double x = low; x < high; x += h) {
    const long double v = q * std::expm1((2 * x - 1) / (2 * sigma * sigma));
    sum += std::exp(-x * x / (2 * sigma * sigma)) * (std::expm1(p * std::log1p(v)) - p * v);
  }
  return sum * h / (sigma * 2.506628274631000502415765284811L);
}

struct Moment {
  const char* name;
  Direction direction;
  double q, sigma, c;
};

void PrintTo(const Moment& c, std::ostream* out) { *out << c.name; }

class RealMoments : public testing::TestWithParam<Moment> {};

TEST_P(RealMoments, IsTheIntegral) {
  const auto& [name, direction, q, sigma, c] = GetParam();
  const long double exact = std::log1p(excess(direction, {q, sigma}, c));
  EXPECT_NEAR(static_cast<double>(real_moment(direction, {q, sigma}, c).log_m / exact), 1, 1e-12);
}

// long double leaves 1e-17 of the sum of moduli, which (1 + 1/c)·log M bounds in this form.
double left_by_the_oracle(long double exact, double c) { return static_cast<double>(exact) * (1 + 1 / c) * 1e-16; }

TEST_P(RealMoments, TheErrorIsAtMostWhatIsSaid) {
  const auto& [name, direction, q, sigma, c] = GetParam();
  const long double exact = std::log1p(excess(direction, {q, sigma}, c));
  const RealMoment found = real_moment(direction, {q, sigma}, c);
  EXPECT_LE(static_cast<double>(std::abs(found.log_m - exact)), found.error + left_by_the_oracle(exact, c));
  // And what is said is of use: e^-45 is left by the rule, the rest are roundings.
  EXPECT_GT(found.error, 1e-16 * found.log_m);
  EXPECT_LE(found.error, 1e-10 * found.log_m + 1e-18 * (1 + c));
}

TEST_P(RealMoments, TheUpperBoundIsAboveTheIntegralByRoundings) {
  const auto& [name, direction, q, sigma, c] = GetParam();
  const long double exact = std::log1p(excess(direction, {q, sigma}, c));
  const double upper = log_moment_upper(direction, {q, sigma}, c);
  EXPECT_GE(upper, static_cast<double>(exact) - left_by_the_oracle(exact, c));
  EXPECT_LE(upper, static_cast<double>(exact) * (1 + 1e-10));
}

TEST_P(RealMoments, MeanAndVarianceAreItsDerivatives) {
  const auto& [name, direction, q, sigma, c] = GetParam();
  const double h = 1e-4 * c;
  const RealMoment below = real_moment(direction, {q, sigma}, c - h);
  const RealMoment here = real_moment(direction, {q, sigma}, c);
  const RealMoment above = real_moment(direction, {q, sigma}, c + h);
  EXPECT_NEAR((above.log_m - below.log_m) / (2 * h) / here.mean, 1, 1e-5);
  EXPECT_NEAR((above.mean - below.mean) / (2 * h) / here.variance, 1, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Runs, RealMoments,
                         testing::Values(Moment{"Remove", Direction::kRemove, 0.01, 1, 8},
                                         Moment{"Add", Direction::kAdd, 0.01, 1, 8},
                                         Moment{"TinyRate", Direction::kRemove, 1e-7, 2, 12},
                                         Moment{"TinyRateAdd", Direction::kAdd, 1e-7, 2, 12},
                                         Moment{"LittleNoise", Direction::kRemove, 0.3, 0.3, 2},
                                         Moment{"LittleNoiseAdd", Direction::kAdd, 0.3, 0.3, 2},
                                         Moment{"LargeMoment", Direction::kRemove, 0.2, 0.8, 30},
                                         Moment{"LargeMomentAdd", Direction::kAdd, 0.9, 0.8, 30},
                                         Moment{"MuchNoise", Direction::kRemove, 0.05, 30, 900},
                                         Moment{"MuchNoiseAdd", Direction::kAdd, 0.05, 30, 900},
                                         Moment{"SmallOrder", Direction::kRemove, 0.4, 1.5, 0.05},
                                         Moment{"SmallOrderAdd", Direction::kAdd, 0.4, 1.5, 0.05}),
                         [](const auto& c) { return c.param.name; });

// Where the two Gaussians do not overlap, w is 1 - q in all but 1e-85 of the cases; what E[w] = 1 has besides lies
// where the density itself is too small for a double.
TEST(RealMoment, OfAddingWithHardlyAnyNoiseIsThatOfTheLargestLoss) {
  for (const double sigma : {0.012, 0.02, 0.03, 0.04, 0.05})
    for (const double q : {1e-7, 1e-3, 0.4})
      for (const double c : {0.01, 1.0, 9.0, 200.0}) {
        const double found = real_moment(Direction::kAdd, {q, sigma}, c).log_m;
        EXPECT_NEAR(found / (-c * std::log1p(-q)), 1, 1e-11) << sigma << ' ' << q << ' ' << c;
      }
}

// What is kept from one c to the next changes no bit: the same run charged in another order gives the same answer.
TEST(RealMoment, DoesNotDependOnWhatWasAskedBefore) {
  struct Asked {
    Direction direction;
    SampledGaussian release;
    double c, log_m;
  };
  std::vector<Asked> asked;
  for (const Direction direction : {Direction::kRemove, Direction::kAdd})
    for (const double sigma : {0.1, 0.5, 0.8, 1.3, 4.0, 20.0, 33.0})
      for (const double c : {0.01, 0.25, 1.0, 1.7, 4.0, 16.0, 40.0, 300.0})
        asked.push_back({direction, {0.02, sigma}, c, 0});
  for (Asked& one : asked)  // each in a thread of its own: nothing is kept there
    std::thread([&] { one.log_m = real_moment(one.direction, one.release, one.c).log_m; }).join();
  for (const size_t stride : {1, 37, 75, 111})  // orders of all of them, having no factor in common with their number
    for (size_t i = 0; i < asked.size(); ++i) {
      const Asked& one = asked[i * stride % asked.size()];
      EXPECT_EQ(real_moment(one.direction, one.release, one.c).log_m, one.log_m) << i << ' ' << stride;
    }
}

}  // namespace
}  // namespace ghostshard::accountant
