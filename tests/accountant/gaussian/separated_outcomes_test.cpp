// Outcomes that tell whether the unit was drawn: beside the closed form of one release, and the brackets of a grid.
#include "accountant/gaussian/separated_outcomes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "accountant/gaussian/single_release.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

class SeparatedRuns : public testing::TestWithParam<OracleTruth> {};

// Two executions of separated outcomes and more, with a grid that knows nothing of them.
TEST_P(SeparatedRuns, AreInsideTheBracketOfAGridAndNarrow) {
  const EpsilonBound found = charged("contour", GetParam())->epsilon(Delta(GetParam().delta));
  const EpsilonBound grid = charged("prv", GetParam())->epsilon(Delta(GetParam().delta));
  EXPECT_NE(found.detail.find("separated"), std::string::npos) << found.detail;
  EXPECT_LE(found.lower, grid.upper);
  EXPECT_GE(found.upper, grid.lower);
  EXPECT_LE(found.upper - found.lower, 1e-11 * (1 + found.upper));
  EXPECT_LT(grid.upper - grid.lower, 1e-2 * (1 + grid.upper));
}

INSTANTIATE_TEST_SUITE_P(Runs, SeparatedRuns,
                         testing::Values(OracleTruth{"ADrawDecides", {{2e-3, 0.05, 20}}, 1e-3, 0, 0},
                                         OracleTruth{"TwoDrawsDecide", {{2e-3, 0.04, 20}}, 1e-4, 0, 0},
                                         OracleTruth{"ManyDraws", {{0.1, 0.04, 300}}, 1e-6, 0, 0},
                                         OracleTruth{"NearlyAlwaysDrawn", {{0.97, 0.05, 40}}, 1e-6, 0, 0},
                                         OracleTruth{"OnAPlateau", {{1e-3, 0.03, 4}}, 5e-6, 0, 0},
                                         OracleTruth{"TwoPhases", {{0.02, 0.05, 30}, {0.2, 0.04, 7}}, 1e-5, 0, 0},
                                         OracleTruth{
                                             "BesideUnsampledNoise", {{0.01, 0.05, 30}, {1, 3, 40}}, 1e-5, 0, 0}),
                         [](const auto& c) { return std::string(c.param.name); });

// Of one execution the truth is known, and where sigma is large enough it exceeds D by what is on the wrong side.
TEST(SeparatedOutcomes, AreCountedWhereTheyAreNot) {
  const SampledGaussian release{0.1, 0.08};
  const auto outcomes = SeparatedOutcomes::make({{release, 1}}, Delta(0.09));
  ASSERT_TRUE(outcomes);
  for (const double epsilon : {0.0, 0.5, 3.0, 20.0, 75.0, 100.0}) {
    const Bracket truth = single_release_delta(Direction::kRemove, release, epsilon);
    const SeparatedOutcomes::Value value = outcomes->at(epsilon);
    EXPECT_LE(value.lower, truth.upper) << epsilon;
    EXPECT_GE(value.upper, truth.lower) << epsilon;
    EXPECT_LT(value.upper - value.lower, 1e-8) << epsilon;
  }
  EXPECT_GT(single_release_delta(Direction::kRemove, release, 0).lower, outcomes->at(0).delta * (1 + 1e-12));
}

// The same executions, as one phase and as two: binomial numbers of draws add up.
TEST(SeparatedOutcomes, AddUpOverPhases) {
  const SampledGaussian release{0.05, 0.04};
  const auto one = SeparatedOutcomes::make({{release, 50}}, Delta(1e-6));
  const auto two = SeparatedOutcomes::make({{release, 20}, {release, 30}}, Delta(1e-6));
  ASSERT_TRUE(one && two);
  for (const double epsilon : {10.0, 500.0, 2000.0, 4000.0}) {
    EXPECT_NEAR(two->at(epsilon).delta, one->at(epsilon).delta, 1e-13 * one->at(epsilon).delta + 1e-18) << epsilon;
    EXPECT_LE(two->at(epsilon).lower, one->at(epsilon).upper) << epsilon;
    EXPECT_GE(two->at(epsilon).upper, one->at(epsilon).lower) << epsilon;
  }
}

// Numbers of draws that are left out may have a loss of any size.
TEST(SeparatedOutcomes, CountTheDrawsThatAreLeftOut) {
  const auto outcomes = SeparatedOutcomes::make({{{0.2, 0.01}, 1000}}, Delta(1e-3));
  ASSERT_TRUE(outcomes);
  const SeparatedOutcomes::Value beyond = outcomes->at(1e9);  // more than any of the others has
  EXPECT_EQ(beyond.lower, 0);
  EXPECT_GT(beyond.upper, 1e-19);
}

TEST(SeparatedOutcomes, AreNotOfMoreNoise) {
  EXPECT_FALSE(SeparatedOutcomes::make({{{0.1, 0.3}, 5}}, Delta(1e-5)));
  EXPECT_FALSE(SeparatedOutcomes::make({{{0.1, 0.03}, 5.5}}, Delta(1e-5)));
}

}  // namespace
}  // namespace ghostshard::accountant
