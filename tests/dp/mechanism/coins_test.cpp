// A coin falls exactly below floor(q·2^64), so that a unit is never drawn more often than is accounted.
#include "dp/mechanism/coins.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "tests/support/keys.h"

namespace ghostshard::tests {
namespace {

using accountant::SamplingRate;

TEST(CoinBound, FallsExactlyBelowTheRate) {
  // q in double precision times 2^64 is a whole number unless q is below 2^-11: then it is rounded down.
  for (const double q : {0.5, 1.0 / 3, 0x1p-64, 0x1.8p-64, 1e-9, std::nextafter(1.0, 0.0)}) {
    const auto bound = dp::CoinBound::of_rate(SamplingRate(q));
    const auto threshold = static_cast<uint64_t>(std::floor(std::ldexp(static_cast<long double>(q), 64)));
    EXPECT_EQ(bound.threshold(), threshold) << q;
    EXPECT_FALSE(bound.everything()) << q;
  }
  EXPECT_TRUE(dp::CoinBound::of_rate(SamplingRate(1.0)).everything());
}

TEST(CoinBound, OfABatchIsAtMostItsRoundedUpRate) {
  for (const int64_t units : {3, 7, 1000, 999983}) {
    for (const int64_t batch : {int64_t{1}, units / 3, units - 1}) {
      const double nearest = static_cast<double>(batch) / static_cast<double>(units);
      const auto exact = dp::CoinBound::of_batch(batch, units);
      const auto above = std::floor(std::ldexp(static_cast<long double>(std::nextafter(nearest, 1.0)), 64));
      EXPECT_LE(exact.threshold(), static_cast<uint64_t>(above)) << batch << " of " << units;
    }
  }
}

TEST(DrawnUnits, AreThoseOfTheSamplerUnderTheSameKey) {
  const auto key = key_of(9);
  const auto of_rate = dp::drawn_units(key, {4}, 0, 400, dp::CoinBound::of_rate(SamplingRate(0.25)));
  const auto of_batch = dp::drawn_units(key, {4}, 0, 400, dp::CoinBound::of_batch(100, 400));
  EXPECT_EQ(of_rate, of_batch);
  EXPECT_NE(of_rate, dp::drawn_units(key, {5}, 0, 400, dp::CoinBound::of_batch(100, 400)));
}

}  // namespace
}  // namespace ghostshard::tests
