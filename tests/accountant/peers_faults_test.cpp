// Faults found by running other accountants, each as a claim that ours does not have it. Numbers of truths: two
// contours in 40-digit arithmetic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "accountant/accountant.h"
#include "accountant/calibration.h"
#include "accountant/engines/rdp.h"

namespace ghostshard::accountant {
namespace {

EpsilonBound epsilon(const std::string& engine, double q, double sigma, int64_t steps, double delta) {
  const auto accountant = make_accountant(engine, Adjacency::kZeroOut);
  accountant->compose(PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}, steps);
  return accountant->epsilon(Delta(delta));
}

// B1, B2: a count that some event types ignore.
class B1B2CountIsNotIgnored : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(B1B2CountIsNotIgnored, ComposingNTimesIsCountN) {
  const auto& [engine, kind] = GetParam();
  const Event events[] = {GaussianEvent{NoiseMultiplier(20)},
                          PoissonGaussianEvent{SamplingRate(0.02), NoiseMultiplier(1.5)},
                          AdaptiveClippingEvent{SamplingRate(0.02), NoiseMultiplier(1.5), NoiseMultiplier(9)}};
  const auto at_once = make_accountant(engine, Adjacency::kAddOrRemove);
  const auto one_by_one = make_accountant(engine, Adjacency::kAddOrRemove);
  const auto single = make_accountant(engine, Adjacency::kAddOrRemove);
  at_once->compose(events[kind], 60);
  single->compose(events[kind], 1);
  for (int i = 0; i < 60; ++i) one_by_one->compose(events[kind], 1);
  EXPECT_EQ(at_once->epsilon(Delta(1e-6)).upper, one_by_one->epsilon(Delta(1e-6)).upper);
  EXPECT_GT(at_once->epsilon(Delta(1e-6)).upper, 1.05 * single->epsilon(Delta(1e-6)).upper);
}

INSTANTIATE_TEST_SUITE_P(Engines, B1B2CountIsNotIgnored,
                         testing::Combine(testing::Values("contour", "prv", "rdp"), testing::Range(0, 3)));

TEST(B1B2CountIsIgnoredNowhere, FixedSizeToo) {
  const FixedSizeGaussianEvent event{1000, 10, NoiseMultiplier(3)};
  const auto at_once = make_accountant("rdp", Adjacency::kReplaceOne);
  const auto one_by_one = make_accountant("rdp", Adjacency::kReplaceOne);
  at_once->compose(event, 50);
  for (int i = 0; i < 50; ++i) one_by_one->compose(event, 1);
  EXPECT_EQ(at_once->epsilon(Delta(1e-6)).upper, one_by_one->epsilon(Delta(1e-6)).upper);
}

// B3, B4: an upper bound below the truth, or an interval beside it, at the deltas of large models.
struct Small {
  const char* name;
  double q, sigma;
  int64_t steps;
  double delta, low, high;  // the truth, as far as the reference states it
};

void PrintTo(const Small& c, std::ostream* out) { *out << c.name; }

class B3B4AtTinyDelta : public testing::TestWithParam<Small> {};

TEST_P(B3B4AtTinyDelta, TheBracketHoldsTheTruth) {
  const Small& c = GetParam();
  const EpsilonBound found = epsilon("contour", c.q, c.sigma, c.steps, c.delta);
  EXPECT_LE(found.lower, c.high);
  EXPECT_GE(found.upper, c.low);
  EXPECT_LT(found.upper - found.lower, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Truths, B3B4AtTinyDelta,
                         testing::Values(Small{"LargeModel", 4.08e-5, 0.614, 100000, 1e-11, 2.20505, 2.20515},
                                         Small{"LittleNoise", 1e-3, 0.6, 100000, 1e-11, 10.9235, 10.9255},
                                         Small{"ManySteps", 1e-4, 0.7, 1000000, 1e-11, 2.32435, 2.32445},
                                         Small{"Plain", 1e-2, 1, 10000, 1e-12, 10.34665, 10.34675},
                                         Small{"LargeModelEvenSmaller", 4.08e-5, 0.614, 100000, 1e-12, 2.6875, 2.6885}),
                         [](const auto& c) { return c.param.name; });

// B5: 1e-15 of mass set aside as infinite loss makes every epsilon below delta = 1e-15 infinite.
TEST(PeersFaults, B5FiniteAndTightAtDeltaOfOneInTenToTheThirty) {
  for (const double q : {0.001, 0.01}) {
    const EpsilonBound found = epsilon("contour", q, 1, 10000, 1e-30);
    EXPECT_LT(found.upper - found.lower, 1e-6) << q;
    EXPECT_LT(found.upper, epsilon("rdp", q, 1, 10000, 1e-30).upper) << q;
  }
}

// B6: a mesh as coarse as the sampling rate gives more than twice the truth.
TEST(PeersFaults, B6TinyRatesAreResolved) {
  const EpsilonBound found = epsilon("contour", 1e-5, 1, 10000000, 1e-9);
  EXPECT_LT(found.upper - found.lower, 1e-9);
  EXPECT_LT(found.upper, 0.25);
}

// B7: orders near 1 dropped because their series did not converge: 1.7 times the truth.
TEST(PeersFaults, B7LowOrdersConvergeAtLargeRates) {
  const double truth = epsilon("contour", 0.2, 1, 10000, 1e-5).estimate;
  EXPECT_LT(epsilon("rdp", 0.2, 1, 10000, 1e-5).upper, 1.05 * truth);
}

// B8: orders that start at 1.1 give 9405 here; the reference's own grid 1196.
TEST(PeersFaults, B8LargeEpsilonsDoNotExplode) {
  const EpsilonBound found = epsilon("contour", 0.01, 0.1, 1000, 1e-5);
  EXPECT_NEAR(found.estimate, 1195, 1);
  EXPECT_LT(found.upper - found.lower, 1e-3);
  const EpsilonBound grid = epsilon("prv", 0.01, 0.1, 1000, 1e-5);
  EXPECT_NEAR(grid.estimate, 1195, 1);
  EXPECT_LT(grid.upper - grid.lower, 1e-3);
  EXPECT_LT(epsilon("rdp", 0.01, 0.1, 1000, 1e-5).upper, 1.15 * found.lower);
}

// B8, and what it led to: orders that end at 63 are a floor of epsilon, and noise for less cannot be found.
TEST(PeersFaults, B8NoiseForASmallEpsilonIsFound) {
  const Budget budget{"rdp", Adjacency::kZeroOut, Epsilon(0.1), Delta(1e-5)};
  const double sigma = calibrate_noise(budget, SamplingRate(0.01), 1000).value();
  EXPECT_GT(sigma, 9.79);  // the truth
  EXPECT_LT(sigma, 12);    // not 40, not 80, not impossible
}

// B9: cost that grows with epsilon: 6 GiB at epsilon 1000. And a floor of the mesh at small epsilon.
TEST(PeersFaults, B9HugeAndTinyEpsilonsAreAnswered) {
  const EpsilonBound huge = epsilon("contour", 0.05, 0.5, 100000, 1e-6);
  EXPECT_GT(huge.lower, 1000);
  EXPECT_LT(huge.upper - huge.lower, 1e-5);
  const EpsilonBound tiny = epsilon("contour", 0.01, 100, 1000, 1e-5);
  EXPECT_GT(tiny.lower, 0.007);
  EXPECT_LT(tiny.upper, 0.008);
}

// B10: orders that overflow, moments lost below 1e-15, values below the truth.
TEST(PeersFaults, B10HighOrdersAndTinyMomentsKeepTheirDigits) {
  EXPECT_TRUE(std::isfinite(rdp_log_moment(PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(5)}, 1499)));
  // 45-digit quadrature.
  EXPECT_NEAR(
      rdp_log_moment(PoissonGaussianEvent{SamplingRate(1e-7), NoiseMultiplier(0.5)}, 0.5) / 2.00982953937850984e-13, 1,
      1e-10);
}

// B11: a central limit theorem under-estimates, by a factor above 6 on the run of a large model.
TEST(PeersFaults, B11NoEngineAnswersBelowTheTruthOfALargeModelsRun) {
  for (const char* engine : {"contour", "prv", "rdp"})
    EXPECT_GE(epsilon(engine, 4.08e-5, 0.614, 100000, 1e-11).upper, 2.205) << engine;
  EXPECT_THROW((void)make_accountant("gdp", Adjacency::kZeroOut), std::invalid_argument);
}

// B12: mass below a truncation point forgotten. One release: the whole distribution against its closed form at epsilon
// 0, the total variation distance q·(2·Phi(1/(2 sigma)) - 1).
TEST(PeersFaults, B12NoMassIsForgotten) {
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  engine->compose(PoissonGaussianEvent{SamplingRate(0.3), NoiseMultiplier(0.7)}, 1);
  const double distance = 0.3 * std::erf(1 / (2 * 0.7) / std::sqrt(2.0));
  EXPECT_NEAR(engine->delta(Epsilon(0)).estimate, distance, 1e-14);
}

// ---------------------------------------------------------------------------------------------------------------------
// Refused rather than guessed

struct RefusedPair {
  const char* name;
  const char* engine;
  Adjacency adjacency;
  Event event;
};

void PrintTo(const RefusedPair& c, std::ostream* out) { *out << c.name; }

class Refuses : public testing::TestWithParam<RefusedPair> {};

TEST_P(Refuses, AndNamesEngineEventAndAdjacency) {
  const RefusedPair& c = GetParam();
  const auto engine = make_accountant(c.engine, c.adjacency);
  EXPECT_THAT([&] { engine->compose(c.event, 1); },
              testing::ThrowsMessage<std::invalid_argument>(
                  testing::AllOf(testing::HasSubstr(std::string("accountant ") + c.engine),
                                 testing::HasSubstr(type_name(c.event)), testing::HasSubstr(to_string(c.adjacency)))));
  EXPECT_TRUE(engine->charges().empty());
}

const FixedSizeGaussianEvent kFixed{100, 10, NoiseMultiplier(1)};
const TruncatedPoissonGaussianEvent kTruncated{100, SamplingRate(0.1), 20, NoiseMultiplier(1)};
INSTANTIATE_TEST_SUITE_P(Pairs, Refuses,
                         testing::Values(RefusedPair{"FixedSizeZeroOutContour", "contour", Adjacency::kZeroOut, kFixed},
                                         RefusedPair{"FixedSizeZeroOutPrv", "prv", Adjacency::kZeroOut, kFixed},
                                         RefusedPair{"FixedSizeZeroOutRdp", "rdp", Adjacency::kZeroOut, kFixed},
                                         RefusedPair{"TruncatedContour", "contour", Adjacency::kReplaceOne, kTruncated},
                                         RefusedPair{"TruncatedRdp", "rdp", Adjacency::kReplaceOne, kTruncated}),
                         [](const auto& c) { return c.param.name; });

// ---------------------------------------------------------------------------------------------------------------------
// Truncated Poisson sampling: never less than Poisson sampling, the same where truncation cannot happen

Event truncated(int64_t units, double q, int64_t cap, double sigma) {
  return TruncatedPoissonGaussianEvent{units, SamplingRate(q), cap, NoiseMultiplier(sigma)};
}

class Truncated : public testing::TestWithParam<std::string> {
 protected:
  EpsilonBound of(const Event& event, Adjacency adjacency = Adjacency::kZeroOut) const {
    const auto engine = make_accountant(GetParam(), adjacency);
    engine->compose(event, 200);
    return engine->epsilon(Delta(1e-6));
  }
  const PoissonGaussianEvent poisson_{SamplingRate(0.02), NoiseMultiplier(1.1)};
};

TEST_P(Truncated, IsPoissonWhereNothingIsTruncated) {
  EXPECT_EQ(of(truncated(1000, 0.02, 1000, 1.1)).upper, of(poisson_).upper);
}

TEST_P(Truncated, CostsMoreTheLikelierTruncationIs) {
  double before = of(poisson_).upper;
  // 1000·0.02 = 20 are expected, with a standard deviation of 4.4
  for (const int64_t cap : {80, 65, 55}) {
    const EpsilonBound found = of(truncated(1000, 0.02, cap, 1.1));
    EXPECT_GE(found.upper, before * (1 - 1e-12)) << cap;  // truncation of 4e-21 is lost in the grid's own rounding
    EXPECT_EQ(found.lower, 0);
    before = found.upper;
  }
  const double often = of(truncated(1000, 0.02, 25, 1.1)).upper;
  EXPECT_GT(often, 1.001 * of(poisson_).upper);
  // What replaces the sampling is too likely where it is not bounded as what it is.
  EXPECT_EQ(std::isinf(often), GetParam() == "prv");
}

TEST_P(Truncated, UnderAddOrRemoveTheLargerNeighbourCounts) {
  // All 1000 fit; of 1001 one may be left out, with probability 0.02^1001.
  EXPECT_GE(of(truncated(1000, 0.02, 1000, 1.1), Adjacency::kAddOrRemove).upper, of(poisson_).upper);
}

TEST_P(Truncated, DeltaTakesTruncationToo) {
  const auto engine = make_accountant(GetParam(), Adjacency::kZeroOut);
  engine->compose(truncated(1000, 0.02, 60, 1.1), 200);
  const auto plain = make_accountant(GetParam(), Adjacency::kZeroOut);
  plain->compose(poisson_, 200);
  EXPECT_GT(engine->delta(Epsilon(2)).upper, plain->delta(Epsilon(2)).upper);
}

INSTANTIATE_TEST_SUITE_P(Engines, Truncated, testing::Values("contour", "prv", "rdp"),
                         [](const auto& c) { return c.param; });

// delta + s·(1 + e^epsilon) with s from the exact binomial tail: never above what is claimed by prv, which takes
// truncation for another mechanism. (For the others: truncated_poisson_test.cpp.)
TEST(TruncatedByPrv, TheClaimHoldsWithTheExactTail) {
  const auto engine = make_accountant("prv", Adjacency::kZeroOut);
  engine->compose(truncated(1000, 0.02, 55, 1.1), 200);
  const double found = engine->epsilon(Delta(1e-6)).upper;
  double tail = 0;
  for (int k = 1000; k > 55; --k)
    tail += std::exp(std::lgamma(1001) - std::lgamma(k + 1) - std::lgamma(1001 - k) + k * std::log(0.02) +
                     (1000 - k) * std::log1p(-0.02));
  const auto plain = make_accountant("contour", Adjacency::kZeroOut);
  plain->compose(PoissonGaussianEvent{SamplingRate(0.02), NoiseMultiplier(1.1)}, 200);
  EXPECT_LE(plain->delta(Epsilon(found)).upper + 200 * tail * (1 + std::exp(found)), 1e-6);
}

// Fixed size, replace-one: at whole orders Wang, Balle, Kasiviswanathan's sum, here term by term for alpha = 3, with
// gamma = 0.1, sigma = 4 (eps(2) = 0.25, eps(3) = 0.375).
TEST(FixedSize, IsTheTheoremsSum) {
  const FixedSizeGaussianEvent event{100, 10, NoiseMultiplier(4)};
  const double second = 0.01 * 3 * std::min(4 * std::expm1(0.25), 2 * std::exp(0.25));
  const double third = 2 * 0.001 * std::exp(2 * 0.375);
  EXPECT_NEAR(rdp_log_moment(event, 2, Adjacency::kReplaceOne), std::log1p(second + third), 1e-14);
}

TEST(FixedSize, TheWholeDataSetIsAnUnsampledGaussian) {
  const auto fixed = make_accountant("rdp", Adjacency::kReplaceOne);
  const auto plain = make_accountant("rdp", Adjacency::kReplaceOne);
  fixed->compose(FixedSizeGaussianEvent{100, 100, NoiseMultiplier(9)}, 5);
  plain->compose(GaussianEvent{NoiseMultiplier(9)}, 5);
  EXPECT_NEAR(fixed->epsilon(Delta(1e-6)).upper, plain->epsilon(Delta(1e-6)).upper, 1e-9);
}

TEST(FixedSize, SamplingHelps) {
  const auto few = make_accountant("rdp", Adjacency::kReplaceOne);
  const auto many = make_accountant("rdp", Adjacency::kReplaceOne);
  few->compose(FixedSizeGaussianEvent{1000, 10, NoiseMultiplier(4)}, 100);
  many->compose(FixedSizeGaussianEvent{1000, 100, NoiseMultiplier(4)}, 100);
  EXPECT_LT(few->epsilon(Delta(1e-6)).upper, many->epsilon(Delta(1e-6)).upper);
}

}  // namespace
}  // namespace ghostshard::accountant
