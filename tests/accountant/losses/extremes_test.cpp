// Tables of losses where doubles end: rates next to 1, hardly any noise, tables that lack some of their probability.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/gaussian/event_moment.h"
#include "accountant/losses/laws.h"
#include "accountant/losses/normal_mass.h"
#include "accountant/rdp_at_orders.h"

namespace ghostshard::accountant {
namespace {

double upper_of(const Event& event, double delta, const char* engine) {
  auto accountant = make_accountant(engine, Adjacency::kZeroOut);
  accountant->compose(event, 1);
  return accountant->epsilon(Delta(delta)).upper;
}

double delta_of(const LossAtoms& atoms, double epsilon) {
  double sum = atoms.infinite;
  for (size_t i = 0; i < atoms.loss.size(); ++i)
    if (atoms.loss[i] > epsilon) sum += atoms.mass[i] * -std::expm1(epsilon - atoms.loss[i]);
  return sum;
}

// Where nobody is left out but with the probability 1 - q, what an added unit may cost at most is close to -log(1 - q).
class SampledNextToOne : public testing::TestWithParam<std::tuple<double, double>> {};

TEST_P(SampledNextToOne, TheLargestLossKeepsItsDigits) {
  const auto [left_out, s] = GetParam();
  const double q = 1 - left_out;
  const long double largest = -std::log((1 - static_cast<long double>(q)) + q * std::exp(-static_cast<long double>(s)));
  const DominatingPair pair = dominating_pair_of(poisson_sampled(laplace_losses(1 / s), q));
  EXPECT_GE(static_cast<long double>(pair.add.less_private.loss.back()), largest);
  EXPECT_LE(static_cast<long double>(pair.add.more_private.loss.back()), largest);
  EXPECT_NEAR(pair.add.less_private.loss.back(), static_cast<double>(largest), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Rates, SampledNextToOne,
                         testing::Combine(testing::Values(0.3, 1e-6, 1e-9, 1e-12, 0x1p-53),
                                          testing::Values(8.0, 16.0, 32.0, 64.0)));

// Of losses whose boundaries err, mass at the far end of a cell that the totals of P and Q hardly show.
TEST(LossCells, ACellWhoseEndsAreMisplacedCoversItsOutcomes) {
  constexpr double kMisplaced = 1e-3;
  constexpr double kRare = 5e-4;  // of the loss 1; all else has the loss 0, which counts as kMisplaced
  const LossCells cells{{{kMisplaced, 1, 1, (1 - kRare) + kRare * std::exp(-1.0)}}, kMisplaced};
  const LossAtoms atoms = dominating_pair_of(cells).remove.less_private;
  for (const double epsilon : {0.0, 0.1, 0.5, 0.9, 0.999})
    EXPECT_GE(delta_of(atoms, epsilon), kRare * -std::expm1(epsilon - 1)) << epsilon;
}

// The masses of narrow cells, against tails in long double.
TEST(LossCells, OfNormalMixturesErrByNoMoreThanTheySay) {
  const auto tail = [](long double z) { return std::erfc(z / std::sqrt(2.0L)) / 2; };
  for (const double sigma : {0.3, 17.0, 3e4}) {
    const LossCells found = normal_mixture_losses({{0.75, 0.25}, {0, 1}}, {{1}, {0}}, sigma);
    const double first = -20 * sigma;
    const double last = 1 + 20 * sigma;
    const auto cells = static_cast<int>(found.cells.size()) - 2;
    double low = first;
    for (int i = 1; i <= cells; ++i) {
      const double high = first + (last - first) * i / cells;
      const auto of = [&](long double at) {
        const long double a = (low - at) / sigma;
        const long double b = (high - at) / sigma;
        return a > 0 ? tail(a) - tail(b) : tail(-b) - tail(-a);
      };
      const LossCell& cell = found.cells[static_cast<size_t>(i)];
      EXPECT_LE(std::abs(cell.p - (0.75L * of(0) + 0.25L * of(1))), cell.p_error) << sigma << ' ' << i;
      EXPECT_LE(std::abs(cell.q - of(0)), cell.q_error) << sigma << ' ' << i;
      low = high;
    }
  }
}

// Numbers that a ledger may hold and that no double holds the square or the quotient of: what is certified is no
// finite epsilon worth the name.
class HardlyAnyNoise : public testing::TestWithParam<std::pair<const char*, Event>> {};

TEST_P(HardlyAnyNoise, IsNoPrivacy) {
  for (const char* engine : {"contour", "prv", "rdp"})
    EXPECT_GE(upper_of(GetParam().second, 1e-6, engine), 1e30) << engine;
}

INSTANTIATE_TEST_SUITE_P(
    Events, HardlyAnyNoise,
    testing::Values(std::pair{"laplace", Event(LaplaceEvent{SamplingRate(1), NoiseMultiplier(1e-310)})},
                    std::pair{"laplace", Event(LaplaceEvent{SamplingRate(1), NoiseMultiplier(1e-40)})},
                    std::pair{"sampled", Event(LaplaceEvent{SamplingRate(0.5), NoiseMultiplier(1e-310)})},
                    std::pair{"discrete",
                              Event(DiscreteLaplaceEvent{SamplingRate(1), NoiseParameter(1e308), 1'000'000})},
                    std::pair{"gaussian", Event(DiscreteGaussianEvent{SamplingRate(1), NoiseMultiplier(1e-30), 2})},
                    std::pair{"gaussian", Event(DiscreteGaussianEvent{SamplingRate(1), NoiseMultiplier(1e-160), 1})},
                    std::pair{"gaussian", Event(DiscreteGaussianEvent{SamplingRate(1), NoiseMultiplier(1e-160), 2})},
                    std::pair{"gaussian", Event(DiscreteGaussianEvent{SamplingRate(0.5), NoiseMultiplier(1e-320), 1})},
                    std::pair{"choice", Event(ExponentialMechanismEvent{Epsilon(1e308)})},
                    std::pair{"any", Event(EpsilonDeltaEvent{Epsilon(1e308), Probability(0)})},
                    std::pair{"zcdp", Event(ZcdpEvent{Rho(1e308), Rho(0)})},
                    std::pair{"zcdp", Event(ZcdpEvent{Rho(0), Rho(1e308)})},
                    std::pair{"group", Event(GroupPoissonGaussianEvent{3, SamplingRate(0.5), NoiseMultiplier(1e-200)})},
                    std::pair{"mixture", Event(MixtureOfGaussiansEvent{NoiseMultiplier(1e-200), {0, 1}, {0.5, 0.5}})},
                    std::pair{"mixture", Event(MixtureOfGaussiansEvent{NoiseMultiplier(1), {0, 1e300}, {0.5, 0.5}})}),
    [](const auto& c) { return std::string(c.param.first) + std::to_string(c.index); });

// A cell may be wider than a normal distribution.
TEST(NormalMass, OfAWideIntervalIsAll) {
  EXPECT_NEAR(normal_mass(-20, 41).value, 1, 1e-12);
  EXPECT_NEAR(normal_mass(-1e300, 1e300).value, 1, 1e-12);
  EXPECT_NEAR(normal_mass(0, std::numeric_limits<double>::infinity()).value, 0.5, 1e-12);
  EXPECT_GE(normal_mass(38, 39.5).value + normal_mass(38, 39.5).error, 2.8e-316);  // the tail from 38 on
}

// Of two steps with this little noise the one that shows a unit shows it all.
TEST(NormalMixtures, WithCellsWiderThanTheNoiseLoseNothing) {
  for (const double sigma : {1e-3, 1e-6, 1e-8, 1e-30}) {
    const Event event = PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(sigma)};
    for (const char* engine : {"contour", "prv", "rdp"}) {
      auto accountant = make_accountant(engine, Adjacency::kReplaceOne);
      accountant->compose(event, 2);
      EXPECT_GE(accountant->delta(Epsilon(50)).upper, 0.019) << sigma << ' ' << engine;
      EXPECT_GE(accountant->epsilon(Delta(1e-6)).upper, 1 / (sigma * sigma)) << sigma << ' ' << engine;
    }
  }
}

DeltaBound delta_of_one(const Event& event, double epsilon, const char* engine) {
  auto accountant = make_accountant(engine, Adjacency::kZeroOut);
  accountant->compose(event, 1);
  return accountant->delta(Epsilon(epsilon));
}

// 60-digit arithmetic: ten records of one user, all of which are nearly always drawn.
TEST(NormalMixtures, LowerEndsCountWhatTheWeightsErrBy) {
  const Event event =
      GroupPoissonGaussianEvent{10, SamplingRate(0.9999899871299212), NoiseMultiplier(0.8048800433733116)};
  for (const char* engine : {"contour", "prv"}) {
    const DeltaBound bound = delta_of_one(event, 11.511639270830463, engine);
    EXPECT_LE(bound.lower, 0.99999988764404734117) << engine;
    EXPECT_GE(bound.upper, 0.99999988764404734117) << engine;
  }
}

// delta = (1 - e^(-(epsilon - l)/2))²/(1 - e^-epsilon) however small epsilon is: half of what epsilon-DP has.
TEST(BoundedRange, OfTinyEpsilonIsStillOfBoundedRange) {
  for (const double epsilon : {1e-3, 1e-8, 9e-10, 1e-12})
    for (const double share : {0.01, 0.5, 0.9}) {
      const double left = -std::expm1(-(epsilon - share * epsilon) / 2);
      const double truth = left * left / -std::expm1(-epsilon);
      for (const char* engine : {"contour", "prv"}) {
        const DeltaBound bound = delta_of_one(ExponentialMechanismEvent{Epsilon(epsilon)}, share * epsilon, engine);
        EXPECT_LE(bound.lower, truth * (1 + 1e-9)) << engine << ' ' << epsilon << ' ' << share;
        EXPECT_GE(bound.upper, truth * (1 - 1e-9)) << engine << ' ' << epsilon << ' ' << share;
      }
    }
}

// A billionth may be lacking of a table's probabilities. Nobody knows what it reveals.
TEST(LossTable, WhatItsProbabilitiesLackCountsAsInfinite) {
  const Event event = LossTableEvent{{std::log1p(-9e-10)}, {1 - 9e-10}, Probability(0)};  // Q lacks nothing
  for (const char* engine : {"contour", "prv", "rdp"}) {
    EXPECT_EQ(upper_of(event, 1e-10, engine), std::numeric_limits<double>::infinity()) << engine;
    EXPECT_LT(upper_of(event, 1e-6, engine), 1e-3) << engine;
  }
}

// However long the table is: it must not hide more in its rounding than a short one.
TEST(LossTable, ALongOneMayLackNoMore) {
  constexpr size_t kSize = 4000;
  constexpr double kLacking = 1e-11;
  const double each = (1 - kLacking) / kSize;
  const Event event = LossTableEvent{std::vector<double>(kSize, std::log1p(-kLacking)),
                                     std::vector<double>(kSize, each), Probability(0)};
  for (const char* engine : {"contour", "prv", "rdp"})
    EXPECT_EQ(upper_of(event, 1e-12, engine), std::numeric_limits<double>::infinity()) << engine;
}

TEST(RdpAtOrders, AnInfiniteLossIsTakenOffDelta) {
  const std::vector<std::pair<Event, int64_t>> run = {{EpsilonDeltaEvent{Epsilon(0.5), Probability(1e-4)}, 1}};
  EXPECT_EQ(rdp_epsilon_at_orders(run, opacus_orders(), Delta(1e-5)), std::numeric_limits<double>::infinity());
  EXPECT_GE(rdp_epsilon_at_orders(run, opacus_orders(), Delta(1.5e-4)), upper_of(run.front().first, 1.5e-4, "rdp"));
}

// Exponents that are large are rounded by as much, and two atoms leave no room for it.
TEST(Moments, OfATableOfFewLargeLossesAreNotTooSmall) {
  for (double loss = 20; loss < 700; loss *= 1.07) {
    const double mass = std::exp(-loss);
    const Event event = LossTableEvent{{0, loss}, {1 - mass, mass}, Probability(0)};
    for (const double c : {0.4, 0.97, 0.9913, 0.9951, 0.9977, 0.9987, 0.9993, 0.9999, 1.3, 2.7}) {
      const long double m = std::log1p(static_cast<long double>(mass) * std::expm1(static_cast<long double>(c) * loss));
      EXPECT_GE(static_cast<long double>(event_log_moment(event, c, Adjacency::kZeroOut)), m) << loss << ' ' << c;
    }
  }
}

TEST(Moments, NearOrderOneEpsilonKeepsItsDigits) {
  for (double c = 1e-6; c < 1; c *= 3.3)
    for (const double log_delta : {-1e-7, -1e-3, -0.7, -20.0}) {
      const long double exact = 0.3L / c - std::log1p(1 / static_cast<long double>(c)) -
                                (log_delta + std::log1p(static_cast<long double>(c))) / c;
      EXPECT_GE(static_cast<long double>(epsilon_of_moment(c, 0.3, log_delta)), exact) << c << ' ' << log_delta;
      EXPECT_NEAR(epsilon_of_moment(c, 0.3, log_delta), static_cast<double>(exact), 1e-14 * (1 + 0.3 - log_delta) / c);
    }
}

// Shape 0 is the limit, and a shape that hardly is a double has no digits to lose.
TEST(Tuning, AShapeNextToNothingIsTheLogarithmicOne) {
  const std::vector<TunedRelease> run = {{GaussianEvent{NoiseMultiplier(2)}, 1}};
  const auto moment = [&](double shape) {
    return event_log_moment(TuningNegativeBinomialEvent{RepeatShape(shape), RepeatGamma(0.5), run}, 2,
                            Adjacency::kZeroOut);
  };
  const double limit = moment(0);
  for (const double shape : {5e-324, -5e-324, 1e-322, 1e-310, 1e-30, -1e-18, 1e-16})
    EXPECT_NEAR(moment(shape), limit, 1e-13 * limit) << shape;
}

}  // namespace
}  // namespace ghostshard::accountant
