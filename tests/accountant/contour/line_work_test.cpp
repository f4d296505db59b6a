// What saves work on lines and changes no bound: the search for a shift, wider registers, runs that cost nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/contour/contour_moments.h"
#include "accountant/contour/least_near.h"
#include "accountant/contour/turning.h"

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

struct Release {
  double q, sigma, count;
};

class ShiftOfSomeNodes : public testing::TestWithParam<Release> {};

// The rest of a line is bounded at one shift, which a part of the nodes chose.
TEST_P(ShiftOfSomeNodes, IsNearlyAsGoodAsTheBestOne) {
  const auto [q, sigma, count] = GetParam();
  for (const Direction direction : {Direction::kRemove, Direction::kAdd})
    for (const double c : {0.3, 2.0, 20.0}) {
      const RealMoment real = real_moment(direction, {q, sigma}, c);
      const LineMoment line(direction, {{q, sigma}, count}, c, real, false);
      EXPECT_GT(line.nodes(), 128) << "so few that all of them choose";
      for (double t = 0.1; t < 1e4; t *= 3) {
        double best = 0;
        for (size_t index = 0; index < LineMoment::kShifts; ++index)
          best = std::min(best, count * line.log_bound(index, t));
        const double found = line.log_rest(t);
        EXPECT_GE(found, best - 1e-9 * std::abs(best));
        EXPECT_LE(found, 0.95 * best + count * 1.01 * line.log_m_error()) << "c " << c << " t " << t;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(LineWork, ShiftOfSomeNodes,
                         testing::Values(Release{0.01, 1, 1000}, Release{0.4, 0.7, 30}, Release{1e-4, 0.5, 1e6},
                                         Release{0.9, 0.8, 10}));

struct Entries {
  std::vector<double> re, im, turn_re, turn_im, leap_re, leap_im;
  TurnArrays<double> arrays() {
    return {re.data(), im.data(), turn_re.data(), turn_im.data(), leap_re.data(), leap_im.data(), re.size()};
  }
};

Entries some_entries(size_t size) {
  Entries entries;
  for (size_t j = 0; j < size; ++j) {
    const auto place = static_cast<double>(j);
    const std::complex<double> turn = std::polar(1.0, 0.37 * place);
    const std::complex<double> leap = std::pow(turn, static_cast<double>(kTurnsAtOnce));
    entries.re.push_back(std::exp(-place) / 3);
    entries.im.push_back(std::sin(place));
    entries.turn_re.push_back(turn.real());
    entries.turn_im.push_back(turn.imag());
    entries.leap_re.push_back(leap.real());
    entries.leap_im.push_back(leap.imag());
  }
  return entries;
}

TEST(TurnLanes, WiderRegistersGiveTheSameBits) {
  Entries here = some_entries(5 * kTurnLanes);
  Entries there = here;
  for (int turn = 0; turn < 100; ++turn) {
    TurnSums<double> sums, others;
    turn_lanes(here.arrays(), sums);
    turn_each(there.arrays(), others);
    for (size_t i = 0; i < kTurnsAtOnce; ++i) {
      ASSERT_EQ(sums.re[i], others.re[i]);
      ASSERT_EQ(sums.im[i], others.im[i]);
    }
  }
  EXPECT_EQ(here.re, there.re);
  EXPECT_EQ(here.im, there.im);
}

// At every node the sum lies within the bound of the terms' own powers, in long double.
template <class Real>
void expect_turned_within_bounds(size_t nodes, double step, const std::vector<std::complex<double>>& exponents) {
  Turning<Real> turning(nodes);
  double bound = 0;
  for (size_t j = 0; j < exponents.size(); ++j) {
    const std::complex<Real> l(exponents[j]);
    turning.add(1, turning.factors(static_cast<Real>(step), l));
    bound += turning.rounding(step, std::abs(exponents[j]));
  }
  turning.begin();
  if (exponents.size() > 1) bound += turning.adding() * static_cast<double>(exponents.size());  // zeros add nothing
  for (size_t k = 0; k < turning.steps(); k += kTurnsAtOnce) {
    TurnSums<Real> sums;
    turning.sums_and_turn(sums);
    for (size_t i = 0; i < kTurnsAtOnce; ++i) {
      std::complex<long double> truth = 0;
      const long double t = static_cast<long double>(step) * static_cast<long double>(k + i);
      for (const auto& l : exponents) truth += std::exp(t * std::complex<long double>(l));
      const std::complex<long double> found(sums.re[i], sums.im[i]);
      // The truth has a few roundings of long double itself, of exponents of some hundreds.
      ASSERT_LE(static_cast<double>(std::abs(found - truth)), bound + 1e-16 * static_cast<double>(exponents.size()))
          << k + i;
    }
  }
}

TEST(Turning, OfOneTermStaysWithinTheBoundOfItsProducts) {
  for (const std::complex<double> l : {std::complex<double>{-0.0002, 19}, {0, 11.1}, {-0.03, -5.5}}) {
    expect_turned_within_bounds<double>(100, 0.0123456789, {l});
    expect_turned_within_bounds<double>(5000, 0.3, {l});
    expect_turned_within_bounds<long double>(5000, 0.3, {l});
  }
}

TEST(Turning, StaysWithinItsBound) {
  const std::vector<std::complex<double>> exponents = {
      {0, 0}, {0, 1e-9}, {0, -3.3}, {-0.001, 2.7}, {-0.2, 0.01}, {-1e-7, 7.7}, {0, 11.1}, {-0.03, -5.5}, {-0.0002, 19}};
  for (const size_t nodes : {size_t{100}, size_t{5000}}) {
    expect_turned_within_bounds<double>(nodes, 0.3, exponents);
    expect_turned_within_bounds<double>(nodes, 0.0123456789, exponents);
    expect_turned_within_bounds<long double>(nodes, 0.3, exponents);
  }
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
