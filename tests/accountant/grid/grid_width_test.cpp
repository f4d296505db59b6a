// How narrow the grid's brackets are where they are hardest: many steps, large epsilons, phases of different lengths;
// and the upper end alone.
#include <gtest/gtest.h>

#include <cmath>

#include "accountant/grid/grid_blocks.h"
#include "accountant/grid/grid_window.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

class Wide : public testing::TestWithParam<OracleTruth> {};  // without a truth: the contour's bracket stands for it

TEST_P(Wide, BracketIsNarrowAndMeetsTheContour) {
  const Delta delta(GetParam().delta);
  const EpsilonBound grid = charged("prv", GetParam())->epsilon(delta);
  const EpsilonBound line = charged("contour", GetParam())->epsilon(delta);
  ASSERT_LT(line.upper - line.lower, 1e-6);
  EXPECT_LE(grid.lower, line.upper);
  EXPECT_GE(grid.upper, line.lower);
  EXPECT_LT(grid.upper - grid.lower, 1e-4);
}

TEST_P(Wide, TheUpperEndAloneIsOneAndHardlyLooser) {
  const Delta delta(GetParam().delta);
  for (const char* engine : {"prv", "contour"}) {
    const EpsilonBound alone = charged(engine, GetParam())->epsilon(delta, Effort::kUpper);
    const EpsilonBound line = charged("contour", GetParam())->epsilon(delta);
    EXPECT_GE(alone.upper, line.lower) << engine;
    EXPECT_LT(alone.upper, line.upper + 1e-4) << engine;
    EXPECT_LE(alone.lower, line.upper) << engine;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Wide,
    testing::Values(OracleTruth{"LargeEpsilon", {{0.0195, 0.533, 328043}}, 1.5e-9, 0, 0},
                    // What is left over after all blocks is a large part of the shorter phase, if their number is a
                    // square root.
                    OracleTruth{
                        "ShortBesideLong", {{0.104042, 1.20862, 8899}, {0.00107131, 13.9994, 472740}}, 1.38e-10, 0, 0}),
    [](const auto& c) { return std::string(c.param.name); });

// Merged neighbours are cut alike only so: otherwise each block moves down by 1e-4 of a step.
TEST(BlockPlan, ACoarseStepIsAWholeNumberOfFineOnes) {
  const std::vector<ComposedRelease> phases = {{{0.0195, 0.533}, 328043}};
  const Sketches sketches(Direction::kRemove, phases, -20);
  const double c = sketches.saddle_of(1372);
  const auto shape = shape_for(sketches, c, 1370, 1372, -20, 1e-5, size_t{1} << 18);
  ASSERT_TRUE(shape);
  const auto plan = plan_blocks(sketches, phases, *shape, -20, 1e-5, size_t{1} << 18);
  ASSERT_TRUE(plan);
  const double ratio = plan->coarse.grid.h / plan->h;
  EXPECT_NEAR(ratio, std::round(ratio), 1e-9);
  EXPECT_GE(ratio, 2);
}

}  // namespace
}  // namespace ghostshard::accountant
