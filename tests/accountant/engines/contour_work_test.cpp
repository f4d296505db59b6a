// What a bracket costs: the narrow one that was found stands, and a search on a grid ends when its work is spent.
#include <gtest/gtest.h>

#include <cmath>

#include "accountant/accountant.h"
#include "accountant/grid/grid.h"

namespace ghostshard::accountant {
namespace {

// A line under a rule brackets it to 3.4e-6. That was thrown away for a line of all releases, which would need too many
// nodes, and then for one of eight groups: from 0.63 to 1.48.
TEST(ContourWork, ANarrowBracketIsNotGivenUpForGroups) {
  const auto contour = make_accountant("contour", Adjacency::kZeroOut);
  for (int i = 0; i < 151; ++i)
    contour->compose(
        PoissonGaussianEvent{SamplingRate(1.1857e-4), NoiseMultiplier(0.67130521 * std::pow(1.0067288, i))}, 17);
  const EpsilonBound found = contour->epsilon(Delta(3e-12));
  EXPECT_LT(found.upper - found.lower, 1e-5);
  EXPECT_GT(found.lower, 1);
}

double width_of(const DirectionBound& bound) { return bound.upper - bound.lower; }

TEST(ContourWork, ASearchEndsWithWhatItHas) {
  const std::vector<ComposedRelease> phases = {{{0.0132, 0.212}, 19}};
  const Delta delta(1e-6);
  const auto whole = grid_epsilon(Direction::kRemove, phases, delta, {.added_by_mesh = 1e-6});
  const auto ended = grid_epsilon(Direction::kRemove, phases, delta, {.added_by_mesh = 1e-6, .most_work = 1e5});
  ASSERT_TRUE(whole && ended);
  EXPECT_LE(ended->lower, whole->upper);
  EXPECT_GE(ended->upper, whole->lower);
  EXPECT_GT(width_of(*ended), 4 * width_of(*whole));  // each attempt has four times the points, a mesh adds its square
  EXPECT_LT(width_of(*ended), 0.1);
}

}  // namespace
}  // namespace ghostshard::accountant
