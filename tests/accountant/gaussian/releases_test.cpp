// The releases between which the charges of a run lie.
#include "accountant/gaussian/releases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"

namespace ghostshard::accountant {
namespace {

constexpr size_t kAll = 1'000'000;

std::vector<Charge> gaussians(uint64_t seed, int n) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<> sigma(0.3, 40);
  std::vector<Charge> charges;
  for (int i = 0; i < n; ++i)
    charges.push_back({GaussianEvent{NoiseMultiplier(sigma(random))}, static_cast<int64_t>(random() % 1000 + 1)});
  return charges;
}

// 1/sigma² of one Gaussian, and of all: exact but for 2^-64 of each term, some hundred times less than a double's.
long double precision(double sigma) { return 1 / (static_cast<long double>(sigma) * sigma); }

class Unsampled : public testing::TestWithParam<uint64_t> {};

TEST_P(Unsampled, LieBetweenTwoSigmas) {
  const auto charges = gaussians(GetParam(), 300);
  long double exact = 0;
  for (const Charge& charge : charges)
    exact += static_cast<long double>(charge.count) * precision(noise_multiplier(charge.event).value());
  const ReleaseBracket found = composed_releases(charges, Adjacency::kZeroOut, "contour", kAll, kAll);
  ASSERT_EQ(found.less_private.size(), 1U);
  ASSERT_EQ(found.more_private.size(), 1U);
  EXPECT_GE(precision(found.less_private[0].release.sigma), exact);
  EXPECT_LE(precision(found.more_private[0].release.sigma), exact);
  EXPECT_FALSE(found.exact());
  EXPECT_NEAR(found.less_private[0].release.sigma / found.more_private[0].release.sigma, 1, 1e-14);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Unsampled, testing::Range<uint64_t>(0, 8));

TEST(Releases, OneUnsampledGaussianIsNotRounded) {
  const ReleaseBracket found =
      composed_releases({{GaussianEvent{NoiseMultiplier(1.1)}, 1}}, Adjacency::kZeroOut, "contour", kAll, kAll);
  EXPECT_TRUE(found.exact());
  EXPECT_EQ(found.less_private[0].release.sigma, 1.1);
}

// The pair of adaptive clipping has (sigma^-2 + (2·sigma_b)^-2)^(-1/2), which no double holds.
TEST(Releases, AdaptiveClippingLiesBetweenTwoSigmas) {
  const AdaptiveClippingEvent event{SamplingRate(0.1), NoiseMultiplier(1.3), NoiseMultiplier(17)};
  const ReleaseBracket found = composed_releases({{event, 5}}, Adjacency::kZeroOut, "contour", kAll, kAll);
  const long double exact = precision(1.3) + precision(34);
  EXPECT_GE(precision(found.less_private[0].release.sigma), exact);
  EXPECT_LE(precision(found.more_private[0].release.sigma), exact);
}

// ---------------------------------------------------------------------------------------------------------------------
// Many distinct releases

std::vector<Charge> schedule(int steps, bool rates_too) {
  std::vector<Charge> charges;
  for (int i = 0; i < steps; ++i) {
    const double share = static_cast<double>(i) / steps;
    charges.push_back({PoissonGaussianEvent{SamplingRate(rates_too ? 0.01 + 0.03 * std::fmod(7 * share, 1) : 0.04),
                                            NoiseMultiplier(0.8 + share)},
                       1 + i % 3});
  }
  return charges;
}

double total(const std::vector<ComposedRelease>& phases) {
  return std::accumulate(phases.begin(), phases.end(), 0.0,
                         [](double sum, const ComposedRelease& phase) { return sum + phase.count; });
}

class Schedules : public testing::TestWithParam<bool> {};

TEST_P(Schedules, AreFewReleasesOnBothSides) {
  const auto charges = schedule(2000, GetParam());
  const ReleaseBracket all = composed_releases(charges, Adjacency::kZeroOut, "contour", kAll, kAll);
  const ReleaseBracket few = composed_releases(charges, Adjacency::kZeroOut, "contour", 200, 200);
  ASSERT_TRUE(all.exact());
  ASSERT_EQ(all.less_private.size(), 2000U);
  for (const auto* side : {&few.less_private, &few.more_private}) {
    EXPECT_LE(side->size(), 200U);
    EXPECT_GE(side->size(), 60U);
    EXPECT_EQ(total(*side), total(all.less_private));
  }
  for (const Direction direction : {Direction::kRemove, Direction::kAdd})
    for (const double c : {0.1, 1.0, 6.0}) {
      const double exact = composed_moment(direction, all.less_private, c).log_m;
      const double above = composed_moment(direction, few.less_private, c).log_m;
      const double below = composed_moment(direction, few.more_private, c).log_m;
      EXPECT_GT(above, exact) << c;
      EXPECT_LT(below, exact) << c;
      EXPECT_LT(above / below, GetParam() ? 2 : 1.05) << c;
    }
}
INSTANTIATE_TEST_SUITE_P(Both, Schedules, testing::Bool(),
                         [](const auto& c) { return c.param ? "RatesAndSigmas" : "Sigmas"; });

// All releases of the schedule on one line are the oracle: no two of them put together.
TEST(Schedule, EpsilonLiesInTheBracketOfFewReleases) {
  const auto charges = schedule(500, false);
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  for (const Charge& charge : charges) engine->compose(charge.event, charge.count);
  const EpsilonBound found = engine->epsilon(Delta(1e-6));
  EXPECT_LT(found.upper / found.lower, 1.01);
  const auto all = composed_releases(charges, Adjacency::kZeroOut, "contour", kAll, kAll).less_private;
  const auto saddle = saddle_of_delta(Direction::kRemove, all, std::log(1e-6));
  ASSERT_TRUE(saddle);
  const auto line =
      ContourLine::make(Direction::kRemove, all, saddle->c, saddle->epsilon, std::log(1e-6), 0, 100'000'000);
  ASSERT_TRUE(line);
  EXPECT_LE(line->at(found.upper).bracket.upper, 1e-6);
  EXPECT_GE(line->at(found.lower).bracket.lower, 1e-6);
}

TEST(Schedule, EveryEngineBoundsTenThousandReleases) {
  std::vector<double> uppers;
  for (const char* name : {"contour", "rdp"}) {
    const auto engine = make_accountant(name, Adjacency::kZeroOut);
    for (int i = 0; i < 10'000; ++i)
      engine->compose(PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(0.8 + 1e-4 * i)}, 1);
    const EpsilonBound found = engine->epsilon(Delta(1e-6));
    EXPECT_LE(found.lower, found.upper);
    uppers.push_back(found.upper);
  }
  EXPECT_LT(uppers[0], uppers[1]);
  EXPECT_LT(uppers[1], 2 * uppers[0]);
}

}  // namespace
}  // namespace ghostshard::accountant
