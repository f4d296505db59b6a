// What saves work on lines and changes no bound: the search for a shift, wider registers, runs that cost nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/contour/least_near.h"
#include "accountant/contour/turn_lanes.h"

namespace ghostshard::accountant {
namespace {

TEST(LeastNear, FindsTheBottomFromAnywhere) {
  constexpr size_t kCount = 64;
  for (size_t bottom = 0; bottom < kCount; ++bottom)
    for (size_t start = 0; start < kCount; ++start) {
      const auto [place, value] = least_near(
          start, kCount, [&](size_t i) { return std::abs(static_cast<double>(i) - static_cast<double>(bottom)); });
      EXPECT_EQ(place, bottom) << "from " << start;
      EXPECT_EQ(value, 0);
    }
}

TEST(LeastNear, AsksSeldom) {
  int asked = 0;
  (void)least_near(0, 64, [&](size_t i) {
    ++asked;
    return std::abs(static_cast<double>(i) - 50);
  });
  EXPECT_LT(asked, 20);
}

TEST(TurnLanes, WiderRegistersGiveTheSameBits) {
  constexpr size_t kSize = 5 * kLanes;
  std::vector<double> re(kSize), im(kSize), turn_re(kSize), turn_im(kSize);
  for (size_t j = 0; j < kSize; ++j) {
    const auto place = static_cast<double>(j);
    const std::complex<double> turn = std::polar(1.0, 0.37 * place);
    re[j] = std::exp(-place) / 3;
    im[j] = std::sin(place);
    turn_re[j] = turn.real();
    turn_im[j] = turn.imag();
  }
  auto other_re = re;
  auto other_im = im;
  for (int turn = 0; turn < 100; ++turn) {
    double sum_re[kLanes], sum_im[kLanes], other_sum_re[kLanes], other_sum_im[kLanes];
    turn_lanes(re.data(), im.data(), turn_re.data(), turn_im.data(), kSize, sum_re, sum_im);
    turn_each(other_re.data(), other_im.data(), turn_re.data(), turn_im.data(), kSize, other_sum_re, other_sum_im);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      ASSERT_EQ(sum_re[lane], other_sum_re[lane]);
      ASSERT_EQ(sum_im[lane], other_sum_im[lane]);
    }
  }
  EXPECT_EQ(re, other_re);
  EXPECT_EQ(im, other_im);
}

double total_variation(double q, double sigma) { return q * std::erf(1 / (2 * std::numbers::sqrt2 * sigma)); }

EpsilonBound epsilon(double q, double sigma, int64_t steps, double delta) {
  const auto accountant = make_accountant("contour", Adjacency::kZeroOut);
  accountant->compose(PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}, steps);
  return accountant->epsilon(Delta(delta));
}

TEST(TotalVariation, BelowDeltaNothingIsSpent) {
  const EpsilonBound found = epsilon(2e-6, 1.75, 100, 100 * total_variation(2e-6, 1.75) * (1 + 1e-8));
  EXPECT_EQ(found.upper, 0);
  EXPECT_EQ(found.lower, 0);
  EXPECT_EQ(found.detail, "total variation below delta");
}

// One release's epsilon is 0 from its total variation on, and not before: every execution counts.
TEST(TotalVariation, AboveDeltaSomethingMayBe) {
  EXPECT_GT(epsilon(0.01, 1, 1, total_variation(0.01, 1) * 0.999).lower, 0);
  EXPECT_GT(epsilon(0.01, 1, 50, 2 * total_variation(0.01, 1)).lower, 0);
}

}  // namespace
}  // namespace ghostshard::accountant
