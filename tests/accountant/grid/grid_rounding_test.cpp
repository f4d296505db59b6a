// What transforms round, far out where it exceeds the masses themselves; and what the grid makes of both directions.
#include <gtest/gtest.h>

#include <cmath>

#include "accountant/engines/prv.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/grid/grid_blocks.h"

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

// No run is known in which adding a unit costs more than removing one, so that no truth shows whether adding is looked
// at: what is made of a bound that is larger does.
class AddingBeside : public testing::TestWithParam<bool> {};  // upper_only

EpsilonBound of_both(const DirectionBound& remove, bool upper_only, const GridSolver& add) {
  const auto found = adding_beside(remove, {.size = GridSize::kLarge, .upper_only = upper_only}, add);
  EXPECT_TRUE(found);
  return larger_of<EpsilonBound>(remove, *found);
}

TEST_P(AddingBeside, TheLargerBoundIsReported) {
  const DirectionBound remove{GetParam() ? 0 : 1.99, 2, 2, "removing"};
  const EpsilonBound found = of_both(remove, GetParam(), [](const GridRequest& asked) {
    return DirectionBound{asked.upper_only ? 0 : 2.9, 3, 3, "adding"};
  });
  EXPECT_EQ(found.upper, 3);
  EXPECT_EQ(found.direction, "add");
  EXPECT_EQ(found.lower, GetParam() ? 0 : 2.9);
}

TEST_P(AddingBeside, ASmallGridsLooseBoundIsNotTheLastWord) {
  const DirectionBound remove{GetParam() ? 0 : 1.99, 2, 2, "removing"};
  const EpsilonBound found = of_both(remove, GetParam(), [](const GridRequest& asked) {
    return DirectionBound{0, 1, asked.size == GridSize::kSmall ? 2.5 : 1.8, "adding"};
  });
  EXPECT_EQ(found.upper, 2);
  EXPECT_EQ(found.lower, remove.lower);
  EXPECT_EQ(found.direction, "remove");
}

TEST_P(AddingBeside, NothingIsReportedWhereAddingHasNoBound) {
  EXPECT_FALSE(adding_beside({1, 2, 2, "removing"}, {.size = GridSize::kLarge, .upper_only = GetParam()},
                             [](const GridRequest&) { return std::nullopt; }));
}

INSTANTIATE_TEST_SUITE_P(Ends, AddingBeside, testing::Bool(),
                         [](const auto& c) { return c.param ? "UpperOnly" : "Both"; });

}  // namespace
}  // namespace ghostshard::accountant
