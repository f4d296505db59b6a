// Runs with next to no noise: every engine answers soundly and at once, however small sigma is.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "accountant/accountant.h"
#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {
namespace {

class LittleNoise : public testing::TestWithParam<const char*> {
 protected:
  static EpsilonBound epsilon(double q, double sigma, int64_t steps) {
    const auto engine = make_accountant(GetParam(), Adjacency::kZeroOut);
    engine->compose(PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}, steps);
    return engine->epsilon(Delta(1e-5));
  }
};

TEST_P(LittleNoise, IsAnsweredAtOnceAndBetweenItsOwnEnds) {
  for (const double sigma : {0.009, 1e-3, 1e-4, 1e-6, 1e-9}) {
    const auto begun = std::chrono::steady_clock::now();
    const EpsilonBound found = epsilon(0.03, sigma, 200);
    // One release, sampled: with probability 0.03 it tells which of two values 1/sigma standard deviations apart.
    EXPECT_GE(found.upper, 1 / (2 * sigma * sigma)) << sigma;
    // 200 releases without sampling: 200·(1/(2 sigma²) + sqrt(2·log(1e5))/(14·sigma)) is what a Gaussian needs.
    EXPECT_LE(found.upper, 1.02 * 200 * (1 / (2 * sigma * sigma) + 0.4 / sigma)) << sigma;
    EXPECT_LE(found.lower, found.upper);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5)) << sigma;
  }
}

TEST_P(LittleNoise, CostsNoLessThanALittleMore) {
  EXPECT_GE(epsilon(0.03, 0.00999, 200).upper, epsilon(0.03, 0.0101, 200).upper);
}

// Losses of these releases exceed 709.78, the logarithm of the largest double. A run tells at least what one of its
// releases tells, and that is known in closed form.
TEST_P(LittleNoise, ARunCostsAtLeastWhatOneOfItsReleasesDoes) {
  for (const SampledGaussian release :
       {SampledGaussian{0.01, 0.018}, {0.01, 0.026}, {1e-9, 0.014}, {0.5, 0.0101}, {1 - 1e-9, 0.022}}) {
    const auto engine = make_accountant(GetParam(), Adjacency::kZeroOut);
    engine->compose(PoissonGaussianEvent{SamplingRate(release.q), NoiseMultiplier(release.sigma)}, 5);
    EXPECT_GE(engine->epsilon(Delta(1e-5)).upper, single_release_epsilon_lower(release, Delta(1e-5)))
        << release.q << ", " << release.sigma;
  }
}

TEST_P(LittleNoise, ARunsDeltaIsAtLeastThatOfOneOfItsReleases) {
  const SampledGaussian release{0.01, 0.018};
  for (const double epsilon : {720.0, 1500.0}) {
    const auto engine = make_accountant(GetParam(), Adjacency::kZeroOut);
    engine->compose(PoissonGaussianEvent{SamplingRate(release.q), NoiseMultiplier(release.sigma)}, 5);
    EXPECT_GE(engine->delta(Epsilon(epsilon)).upper, single_release_delta(Direction::kRemove, release, epsilon).lower)
        << epsilon;
  }
}

INSTANTIATE_TEST_SUITE_P(, LittleNoise, testing::Values("contour", "prv", "rdp"));

}  // namespace
}  // namespace ghostshard::accountant
