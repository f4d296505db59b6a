// Rare losses apart from the common ones: delta from above and from below, on either side of truths that come from
// elsewhere: closed forms of one release, of which two are integrated here, and the line integral for many.
#include "accountant/grid/rare_cells.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "accountant/gaussian/single_release.h"
#include "accountant/grid/grid_blocks.h"
#include "accountant/grid/grid_side.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

constexpr size_t kPoints = size_t{1} << 14;

// delta of two releases: the first one's outcome x leaves epsilon less its loss to the second. By the trapezoid rule,
// far finer than 1e-9 of delta needs.
double delta_of_two(Direction direction, SampledGaussian release, double epsilon) {
  const auto [q, sigma] = release;
  constexpr int kNodes = 40000;
  const double low = -15 * sigma;
  const double step = (1 + 30 * sigma) / kNodes;
  double sum = 0;
  for (int i = 0; i <= kNodes; ++i) {
    const double x = low + step * i;
    const double at_zero = std::exp(-0.5 * x * x / (sigma * sigma));
    const double at_one = std::exp(-0.5 * (x - 1) * (x - 1) / (sigma * sigma));
    const double log_w = std::log1p(q * std::expm1((2 * x - 1) / (2 * sigma * sigma)));
    const bool remove = direction == Direction::kRemove;
    const Bracket left = single_release_delta(direction, release, epsilon - (remove ? log_w : -log_w));
    sum += (remove ? (1 - q) * at_zero + q * at_one : at_zero) * (left.lower + left.upper) / 2;
  }
  return sum * step / (sigma * std::sqrt(2 * std::numbers::pi));
}

struct Apart {
  const char* name;
  Direction direction;
  double q, sigma;
  int64_t steps;
  double split;  // in coarse steps
  double most_rare;
};

void PrintTo(const Apart& c, std::ostream* out) { *out << c.name; }

class RareApart : public testing::TestWithParam<Apart> {
 protected:
  static constexpr double kMesh = 0.01;

  // All in one block, by hand: what a planner would never choose is to hold as well.
  static BlockPlan plan() {
    const auto& [name, direction, q, sigma, steps, split, most_rare] = GetParam();
    BlockPlan plan{};
    const double low = -9 * sigma;
    const double high = 1 + 9 * sigma;
    plan.coarse.grid = {.h = kMesh, .n = kPoints, .c = 2, .log_scale = 0, .low = low, .high = high};
    plan.coarse.start = -100;
    plan.coarse.phases = {{0, low, high}};
    plan.splits = {{split * kMesh, most_rare}};
    plan.whole = {false};
    plan.log_scale = {0};
    plan.blocks = 1;
    plan.h = kMesh / 16;
    const auto count = static_cast<double>(steps);
    const double start = -0.25 * plan.h * static_cast<double>(kPoints);
    plan.less_private = {{.counts = {count}, .times = 1, .start = start, .before = 8, .beyond = 8}};
    plan.more_private = {{.counts = {count - most_rare}, .times = 1, .start = start, .before = 8, .beyond = 8}};
    return plan;
  }
};

TEST_P(RareApart, LiesOnBothSidesOfTheTruth) {
  const auto& [name, direction, q, sigma, steps, split, most_rare] = GetParam();
  const BlockPlan apart = plan();
  const std::vector<ComposedRelease> phases = {{{q, sigma}, static_cast<double>(steps)}};
  const Side upper(pieces_of_blocks(direction, phases, apart, true), apart.coarse, true);
  const Side lower(pieces_of_blocks(direction, phases, apart, false), apart.coarse, false);
  for (double epsilon = 0.005; epsilon < 0.6; epsilon += 0.0371) {
    const double truth = steps == 1 ? single_release_delta(direction, {q, sigma}, epsilon).lower
                                    : delta_of_two(direction, {q, sigma}, epsilon);
    EXPECT_GE(upper.delta(epsilon), truth * (1 - 1e-9)) << epsilon;
    EXPECT_LE(lower.delta(epsilon) - alias(lower, 2, epsilon), truth * (1 + 1e-9)) << epsilon;
    // And it is a bracket, not just two bounds: where a unit is added, nothing but common losses exceeds epsilon, and K
    // draws of them are given up.
    EXPECT_LE(upper.delta(epsilon), truth * 1.2 + 1e-6) << epsilon;
    if (most_rare == static_cast<double>(steps) && direction == Direction::kRemove && epsilon > 3 * split * kMesh) {
      EXPECT_GE(lower.delta(epsilon), truth * 0.8) << epsilon;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Few, RareApart,
                         testing::Values(Apart{"OneKept", Direction::kRemove, 0.01, 0.6, 1, 2.5, 1},
                                         Apart{"OneDropped", Direction::kRemove, 0.01, 0.6, 1, 2.5, 0},
                                         Apart{"OneOffTheGrid", Direction::kRemove, 0.01, 0.6, 1, 3.2, 1},
                                         Apart{"OneAdd", Direction::kAdd, 0.05, 0.6, 1, 2.5, 1},
                                         Apart{"OneAddDropped", Direction::kAdd, 0.05, 0.6, 1, 2.5, 0},
                                         Apart{"TwoBothKept", Direction::kRemove, 0.01, 0.6, 2, 2.5, 2},
                                         Apart{"TwoOneKept", Direction::kRemove, 0.01, 0.6, 2, 2.5, 1},
                                         Apart{"TwoNoneKept", Direction::kRemove, 0.01, 0.6, 2, 1.5, 0},
                                         Apart{"TwoOftenRare", Direction::kRemove, 0.05, 0.8, 2, 1.5, 2},
                                         Apart{"TwoAdd", Direction::kAdd, 0.05, 0.6, 2, 2.5, 2},
                                         Apart{"TwoAddOneKept", Direction::kAdd, 0.05, 0.6, 2, 2.5, 1}),
                         [](const auto& c) { return c.param.name; });

// What more than K rare outcomes can do is taken off: their probability, or more.
TEST(RareCells, TakesOffTheProbabilityOfMoreThanK) {
  const double q = 0.01;
  const double sigma = 0.6;
  const double split = 0.025;
  const double outcome = sigma * sigma * std::log((std::expm1(split) + q) / q) + 0.5;
  const double rare =
      (1 - q) * std::exp(log_upper_tail(outcome / sigma)) + q * std::exp(log_upper_tail((outcome - 1) / sigma));
  const GridShape grid{.h = 0.01, .n = kPoints, .c = 2, .log_scale = 0, .low = -6, .high = 7, .count = 50};
  const RareCells found = more_private_rare(Direction::kRemove, {q, sigma}, {split, 6}, grid);
  double tail = 1;
  double term = std::pow(1 - rare, 50);
  for (int k = 0; k <= 6; ++k) {
    tail -= term;
    term *= rare / (1 - rare) * (50 - k) / (k + 1);
  }
  EXPECT_GT(tail, 0);
  EXPECT_GE(found.once.dropped, tail);
}

// Runs for which a grid for all losses at once was 5e-5 to 1e-3 wide, or took seconds.
class SmallRates : public testing::TestWithParam<OracleTruth> {};

TEST_P(SmallRates, AreBracketedNarrowlyAndMeetTheLine) {
  const Delta delta(GetParam().delta);
  const EpsilonBound grid = charged("prv", GetParam())->epsilon(delta);
  EXPECT_LT(grid.upper - grid.lower, 3e-5);
  const EpsilonBound line = charged("contour", GetParam())->epsilon(delta);
  EXPECT_LE(grid.lower, line.upper);
  EXPECT_GE(grid.upper, line.lower);
  const EpsilonBound alone = charged("prv", GetParam())->epsilon(delta, Effort::kUpper);
  EXPECT_GE(alone.upper, line.lower);
  EXPECT_LT(alone.upper, line.upper + 5e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, SmallRates,
    testing::Values(
        OracleTruth{"AThirdOfAnEpoch", {{4e-7, 0.503, 810211}}, 6.2e-12, 0, 0},
        OracleTruth{"OneInTenThousandIsRare", {{1.99e-7, 0.375, 1870}}, 2.6e-5, 0, 0},
        OracleTruth{"RareInOneOfTwoPhases", {{0.00106255, 3.98833, 3692}, {3.167e-6, 0.630915, 11440}}, 1.09e-12, 0, 0},
        OracleTruth{"BesideUnsampled",
                    {{1, 2.9837, 25}, {2.23891e-7, 0.550509, 264596}, {1.19803e-4, 4.08188, 2}},
                    4.86e-8,
                    0,
                    0},
        OracleTruth{"UnsampledBesideLong",
                    {{1, 1.56574, 58}, {0.00454923, 18.8333, 163109}, {7.57708e-5, 15.7976, 483206}},
                    8.77e-4,
                    0,
                    0}),
    [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace ghostshard::accountant
