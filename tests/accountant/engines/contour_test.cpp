// What the contour accountant claims, against numbers computed elsewhere, and against itself where no such number
// exists.
#include "accountant/engines/contour.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <sstream>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/single_release.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

Event sampled(double q, double sigma) { return PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}; }

EpsilonBound epsilon(double q, double sigma, int64_t steps, double delta, const std::string& engine = "contour") {
  return charged(engine, {"", {{q, sigma, steps}}, delta, 0, 0})->epsilon(Delta(delta));
}

// ---------------------------------------------------------------------------------------------------------------------
// The oracle

class ContourOracle : public testing::TestWithParam<OracleTruth> {
 protected:
  // The truth is stated with 16 digits.
  double stated() const { return GetParam().error + 4e-16 * GetParam().epsilon; }
};

// 1e-12 where many steps make the loss smooth and delta is not tiny, 1e-9 elsewhere: what the method must reach.
TEST_P(ContourOracle, EstimateIsTheTruth) {
  int64_t steps = 0;
  for (const OraclePhase& phase : GetParam().phases) steps += phase.steps;
  const double tolerance = steps >= 1000 && GetParam().delta >= 1e-12 ? 1e-12 : 1e-9;
  EXPECT_NEAR(charged("contour", GetParam())->epsilon(Delta(GetParam().delta)).estimate, GetParam().epsilon,
              tolerance + stated());
}

TEST_P(ContourOracle, BracketHoldsTheTruthAndIsNarrow) {
  const EpsilonBound found = charged("contour", GetParam())->epsilon(Delta(GetParam().delta));
  EXPECT_LE(found.lower, GetParam().epsilon + stated());
  EXPECT_GE(found.upper, GetParam().epsilon - stated());
  EXPECT_LE(found.lower, found.estimate);
  EXPECT_LE(found.estimate, found.upper);
  EXPECT_LT(found.upper - found.lower, 1e-7);  // a thousandth of what is asked for
  EXPECT_EQ(found.accountant, "contour");
}

TEST_P(ContourOracle, QuickAnswersAreBoundsToo) {
  const EpsilonBound found = charged("contour", GetParam())->epsilon(Delta(GetParam().delta), Effort::kQuick);
  EXPECT_LE(found.lower, GetParam().epsilon + stated());
  EXPECT_GE(found.upper, GetParam().epsilon - stated());
}

// d log(delta)/d epsilon is at most the line's intercept, which is below 300 in these rows, plus 1.
TEST_P(ContourOracle, DeltaAtTheTrueEpsilonIsDelta) {
  const DeltaBound found = charged("contour", GetParam())->delta(Epsilon(GetParam().epsilon));
  EXPECT_LE(found.lower, GetParam().delta * (1 + 300 * stated()));
  EXPECT_GE(found.upper, GetParam().delta * (1 - 300 * stated()));
  EXPECT_NEAR(found.estimate / GetParam().delta, 1, 3e-7);
}

INSTANTIATE_TEST_SUITE_P(Rows, ContourOracle, testing::ValuesIn(oracle_truths()),
                         [](const auto& c) { return std::string(c.param.name); });

// ---------------------------------------------------------------------------------------------------------------------
// Closed forms

TEST(Contour, OneReleaseIsItsClosedForm) {
  for (const double q : {1e-4, 0.01, 0.3, 0.99}) {
    const EpsilonBound found = epsilon(q, 0.8, 1, 1e-6);
    const Bracket remove = single_release_epsilon(Direction::kRemove, {q, 0.8}, Delta(1e-6));
    EXPECT_LE(remove.lower, found.upper) << q;
    EXPECT_LT(found.upper - found.lower, 1e-9) << q;
  }
  EXPECT_NEAR(epsilon(0.01, 1, 1, 1e-5).estimate, 0.1994504477959147, 1e-12);  // 40-digit bisection
}

// Balle, Wang: T releases at sigma are one at sigma/sqrt(T). Twice 2.2e-16 relative in sigma, epsilon/sigma below 20.
TEST(Contour, UnsampledGaussiansAreOneGaussian) {
  EXPECT_NEAR(epsilon(1, 10, 100, 1e-5).estimate, 4.377178095681225, 1e-12);
  EXPECT_NEAR(epsilon(1, 10, 100, 1e-5).estimate, epsilon(1, 1, 1, 1e-5).estimate, 1e-13);
  EXPECT_NEAR(epsilon(1, 30, 10, 1e-20).estimate, epsilon(1, 30 / std::sqrt(10.0), 1, 1e-20).estimate, 1e-12);
}

// ---------------------------------------------------------------------------------------------------------------------
// Properties, at random settings. Bounds are compared, so that each claim is exact.

struct Setting {
  double q, sigma;
  int64_t steps;
  double delta;
};

Setting random_setting(std::mt19937_64& random) {
  const auto between = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  return {std::pow(10, between(-4, -0.1)), std::pow(10, between(-0.3, 1)),
          static_cast<int64_t>(std::pow(10, between(1.5, 5))), std::pow(10, between(-16, -3))};
}

double lower(const Setting& s) { return epsilon(s.q, s.sigma, s.steps, s.delta).lower; }
double upper(const Setting& s) { return epsilon(s.q, s.sigma, s.steps, s.delta).upper; }

class ContourProperty : public testing::TestWithParam<int> {
 protected:
  ContourProperty() : random_(static_cast<uint64_t>(GetParam())), setting_(random_setting(random_)) {
    std::ostringstream text;
    text << "q " << setting_.q << " sigma " << setting_.sigma << " steps " << setting_.steps << " delta "
         << setting_.delta;
    trace_ = text.str();
  }
  std::mt19937_64 random_;
  Setting setting_;
  std::string trace_;
};

TEST_P(ContourProperty, LessPrivateSettingsNeverCostLess) {
  SCOPED_TRACE(trace_);
  const double here = lower(setting_);
  Setting more = setting_;
  more.q = std::min(1.0, more.q * 1.01);
  EXPECT_LE(here, upper(more));
  more = setting_;
  more.sigma /= 1.01;
  EXPECT_LE(here, upper(more));
  more = setting_;
  more.steps += 1 + more.steps / 100;
  EXPECT_LE(here, upper(more));
  more = setting_;
  more.delta /= 1.1;
  EXPECT_LE(here, upper(more));
}

TEST_P(ContourProperty, DeltaAndEpsilonAreInverse) {
  SCOPED_TRACE(trace_);
  const auto engine = charged("contour", {"", {{setting_.q, setting_.sigma, setting_.steps}}, 0, 0, 0});
  const EpsilonBound found = engine->epsilon(Delta(setting_.delta));
  if (found.estimate == 0) return;
  const DeltaBound back = engine->delta(Epsilon(found.estimate));
  EXPECT_LE(back.lower, back.upper);
  EXPECT_NEAR(back.estimate / setting_.delta, 1, 1e-6);
}

TEST_P(ContourProperty, PhasesInAnyOrderGiveTheSameBits) {
  SCOPED_TRACE(trace_);
  const Event first = sampled(setting_.q, setting_.sigma);
  const Event second = sampled(setting_.q / 2, setting_.sigma * 1.1);
  const auto one = make_accountant("contour", Adjacency::kZeroOut);
  const auto other = make_accountant("contour", Adjacency::kAddOrRemove);
  one->compose(first, setting_.steps);
  one->compose(second, setting_.steps);
  other->compose(second, setting_.steps - 7);
  other->compose(first, setting_.steps);
  other->compose(second, 7);
  EXPECT_EQ(one->epsilon(Delta(setting_.delta)).upper, other->epsilon(Delta(setting_.delta)).upper);
  EXPECT_GE(one->epsilon(Delta(setting_.delta)).upper, lower(setting_));
}

TEST_P(ContourProperty, RenyiIsNeverBelow) {
  SCOPED_TRACE(trace_);
  const double renyi = epsilon(setting_.q, setting_.sigma, setting_.steps, setting_.delta, "rdp").upper;
  EXPECT_LE(lower(setting_), renyi);
  EXPECT_LE(upper(setting_), renyi * (1 + 1e-12));
}

INSTANTIATE_TEST_SUITE_P(Random, ContourProperty, testing::Range(0, 24));

TEST(Contour, ReleasesOfOnePartCostNoMoreThanAll) {
  const auto part = make_accountant("contour", Adjacency::kZeroOut);
  part->compose(sampled(0.02, 1.3), 2000);
  const auto all = part->clone();
  all->compose(GaussianEvent{NoiseMultiplier(40)}, 3);
  EXPECT_LT(part->epsilon(Delta(1e-6)).upper, all->epsilon(Delta(1e-6)).lower);
}

// Which direction decides: removing here, and adding is far below; both are looked at.
TEST(Contour, BothDirectionsAreBounded) {
  EXPECT_EQ(epsilon(0.01, 0.3, 1000, 1e-6).direction, "remove");
  const std::vector<ComposedRelease> phases = {{{0.01, 0.3}, 1000}};
  const double adding = 8.72;  // as the reference states it, to three digits
  const auto saddle = saddle_of_epsilon(Direction::kAdd, phases, adding);
  ASSERT_TRUE(saddle);
  const auto line = ContourLine::make(Direction::kAdd, phases, *saddle, adding, std::log(1e-6), 0, 100'000'000);
  ASSERT_TRUE(line);
  EXPECT_NEAR(std::log(line->at(adding).delta / 1e-6) / *saddle, 0, 0.005);
}

TEST(Contour, EpsilonIsZeroWhereDeltaAloneSuffices) {
  const EpsilonBound found = epsilon(1e-4, 5, 100, 0.01);
  EXPECT_EQ(found.upper, 0);
  EXPECT_EQ(found.lower, 0);
}

// Little noise: a line's length, or its rest, is no number. Ten steps with a rate of 0.8 leave out the example in none
// of them with probability 1 - 0.2^10 > 0.9999998, and its loss then exceeds 0.01 almost surely.
TEST(Contour, WhatIsNoNumberEndsTheSearchAndBoundsNothing) {
  const DeltaBound few = charged("contour", {"", {{0.8, 0.0146, 10}}, 1e-5, 0, 0})->delta(Epsilon(0.01));
  EXPECT_GT(few.lower, 0.9999);
  EXPECT_GE(few.upper, 1 - std::pow(0.2, 10));
  EXPECT_LE(few.upper, 1);
  const DeltaBound many =
      charged("contour", {"", {{0.999999, 0.07, 1'000'000'000'000}}, 1e-5, 0, 0})->delta(Epsilon(4));
  EXPECT_GE(many.lower, 0);
  EXPECT_GE(many.estimate, many.lower);
  EXPECT_EQ(many.upper, 1);
}

TEST(Contour, AnAdaptiveClippingStepIsAGaussianWithBothNoises) {
  // 1/2² + 1/(2·10)² = 1/sigma²
  const auto adaptive = make_accountant("contour", Adjacency::kZeroOut);
  adaptive->compose(AdaptiveClippingEvent{SamplingRate(0.02), NoiseMultiplier(2), NoiseMultiplier(10)}, 500);
  const double together = 1 / std::sqrt(1.0 / 4 + 1.0 / 400);
  EXPECT_NEAR(adaptive->epsilon(Delta(1e-6)).estimate, epsilon(0.02, together, 500, 1e-6).estimate, 1e-12);
  EXPECT_GT(adaptive->epsilon(Delta(1e-6)).lower, epsilon(0.02, 2, 500, 1e-6).upper);
}

TEST(Contour, ReplacingOneHalvesTheNoiseOfAnUnsampledGaussian) {
  const auto replaced = make_accountant("contour", Adjacency::kReplaceOne);
  replaced->compose(GaussianEvent{NoiseMultiplier(4)}, 1);
  EXPECT_NEAR(replaced->epsilon(Delta(1e-6)).estimate, epsilon(1, 2, 1, 1e-6).estimate, 1e-12);
}

}  // namespace
}  // namespace ghostshard::accountant
