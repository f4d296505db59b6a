// What transforms round, far out where it exceeds the masses themselves; and the upper end alone of both directions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "accountant/grid.h"
#include "accountant/grid_blocks.h"
#include "accountant/single_release.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

// A block of one execution, on a fine window so long that nothing lies outside it. Dots are connected between whole
// numbers of fine and coarse steps: there delta is exactly that of the release, but for what the transform's rounding
// made of each mass.
class FarOut : public testing::TestWithParam<Direction> {
 protected:
  static constexpr double kTilt = 2;
  static constexpr double kMesh = 0.05;
  static constexpr size_t kPoints = size_t{1} << 14;
  static constexpr SampledGaussian kRelease = {0.3, 1};

  static BlockPlan plan() {
    const double low = -18;
    const double high = 19;
    BlockPlan plan{};
    plan.coarse.grid = {.h = kMesh, .n = kPoints, .c = kTilt, .log_scale = 0, .low = low, .high = high};
    plan.coarse.phases = {{0, low, high}};
    plan.splits = {{}};
    plan.whole = {false};
    plan.log_scale = {0};
    plan.h = kMesh / 4;
    const double start = -0.5 * plan.h * static_cast<double>(kPoints);
    plan.less_private = {{.counts = {1}, .times = 1, .start = start, .before = 12, .beyond = 12}};
    plan.more_private = plan.less_private;
    return plan;
  }

  static double delta(const Piece& piece, double epsilon) {
    long double sum = piece.cells.dropped;
    const auto n = static_cast<int64_t>(kPoints);
    for (int64_t k = -n / 2; k < n / 2; ++k) {
      const long double loss = (static_cast<long double>(k) + static_cast<long double>(piece.cells.shift)) * kMesh;
      if (loss > epsilon)
        sum += piece.cells.mass[static_cast<size_t>((k + n) % n)] * std::exp(piece.log_scale - kTilt * loss) *
               -std::expm1(epsilon - loss);
    }
    return static_cast<double>(sum);
  }
};

TEST_P(FarOut, EachMassOfABlockIsOnItsSideOfTheRounding) {
  const std::vector<ComposedRelease> block = {{kRelease, 1}};
  const auto above = pieces_of_blocks(GetParam(), block, plan(), true);
  const auto below = pieces_of_blocks(GetParam(), block, plan(), false);
  ASSERT_EQ(above.size(), 1);
  ASSERT_EQ(below.size(), 1);
  const double last = GetParam() == Direction::kRemove ? 15 : 0.35;  // 1e-49; the largest loss of adding is 0.357
  for (int k = -7; k * kMesh < last; ++k) {
    const double epsilon = k * kMesh;
    const Bracket exact = single_release_delta(GetParam(), kRelease, epsilon);
    EXPECT_GE(delta(above.front(), epsilon) * (1 + 1e-11), exact.lower) << epsilon;
    EXPECT_LE(delta(below.front(), epsilon) * (1 - 1e-11), exact.upper) << epsilon;
  }
}

INSTANTIATE_TEST_SUITE_P(Directions, FarOut, testing::Values(Direction::kRemove, Direction::kAdd),
                         [](const auto& c) { return c.param == Direction::kRemove ? "Remove" : "Add"; });

// Rates so near 1 that both directions are the same but for 1e-9, and their grids decide which bound is the larger:
// what is reported is proven of both.
class NearlyUnsampled : public testing::TestWithParam<OracleTruth> {};

TEST_P(NearlyUnsampled, TheUpperEndAloneIsOneOfBothDirections) {
  const auto& run = GetParam();
  const double alone = charged("prv", run)->epsilon(Delta(run.delta), Effort::kUpper).upper;
  const std::vector<ComposedRelease> phases = {
      {{run.phases[0].q, run.phases[0].sigma}, static_cast<double>(run.phases[0].steps)}};
  for (const Direction direction : {Direction::kRemove, Direction::kAdd}) {
    double least = std::numeric_limits<double>::infinity();
    for (const GridSize size : {GridSize::kSmall, GridSize::kLarge}) {
      const auto proven = grid_epsilon(direction, phases, Delta(run.delta), {.size = size, .upper_only = true});
      ASSERT_TRUE(proven);
      least = std::min(least, proven->upper);
    }
    EXPECT_GE(alone, least) << (direction == Direction::kRemove ? "remove" : "add");
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, NearlyUnsampled,
                         testing::Values(OracleTruth{"MuchNoise", {{0.999999999, 20, 400}}, 1e-6, 0, 0},
                                         OracleTruth{"LittleNoise", {{0.999999999, 0.7, 3}}, 1e-6, 0, 0},
                                         OracleTruth{"ManySteps", {{0.999999999, 60, 9000}}, 1e-9, 0, 0}),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace ghostshard::accountant
