// The cap of truncated Poisson sampling that costs next to no noise.
#include <gtest/gtest.h>

#include <stdexcept>

#include "accountant/calibration.h"

namespace ghostshard::accountant {
namespace {

TEST(AffordableCap, IsTheSmallestWithinATenthOfAPercent) {
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(4), Delta(1e-6)};
  const SamplingRate q(0.05);
  const int64_t cap = affordable_cap(budget, 10'000, q, 20);
  const double poisson = calibrate_noise(budget, q, 20).value();
  const auto noise_at = [&](int64_t most) {
    return calibrate_noise(
               budget,
               [&](NoiseMultiplier sigma) {
                 return TruncatedPoissonGaussianEvent{10'000, q, most, sigma};
               },
               20)
        .value();
  };
  EXPECT_LE(noise_at(cap), 1.001 * poisson * (1 + 1e-6));
  EXPECT_GT(noise_at(cap - 1), 1.001 * poisson * (1 - 1e-6));
  EXPECT_THROW(affordable_cap(budget, 10'000, q, 20, 0), std::invalid_argument);
}

TEST(AffordableCap, IsRefusedWhereTruncationIsNotBounded) {
  const Budget budget{"contour", Adjacency::kReplaceOne, Epsilon(4), Delta(1e-6)};
  EXPECT_THROW(affordable_cap(budget, 10'000, SamplingRate(0.05), 20), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::accountant
