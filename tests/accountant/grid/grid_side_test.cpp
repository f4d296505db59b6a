// What the grid's two runs count beside their masses: errors to a power, and losses a period away.
#include "accountant/grid/grid_side.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ghostshard::accountant {
namespace {

// Each mass may be 1e-3 too small: a thousand executions have (1 + 1e-3)^1000 = 2.717 of it.
TEST(GridSide, ARelativeErrorGrowsWithThePower) {
  TiltedCells cells;
  cells.mass.assign(16, 0);
  cells.mass[0] = 0.9;
  cells.mass[1] = 0.1;
  cells.relative = 1e-3;
  CircularPower power(16);
  power.add(cells, 1000);
  const double relative = std::move(power).density(0.1, 1).relative;
  EXPECT_GE(relative, std::pow(1.001, 1000) - 1);
  EXPECT_LE(relative, 1.1 * (std::pow(1.001, 1000) - 1));
}

struct Cover {
  const char* name;
  Direction direction;
  double high;  // of the outcomes, in sigmas
};
void PrintTo(const Cover& c, std::ostream* out) { *out << c.name; }
class MorePrivate : public testing::TestWithParam<Cover> {};

// The alias of the more private run is about its own losses: E[e^(c·loss)] of its cells, added up here in long double.
TEST_P(MorePrivate, CellsAreMeasuredThemselves) {
  const auto& [name, direction, high] = GetParam();
  const SampledGaussian release{0.1, 0.7};
  GridShape grid{.h = 0.01, .n = size_t{1} << 12, .c = 2, .log_scale = 0.3, .low = -9 * 0.7, .high = high * 0.7};
  const TiltedCells cells = more_private_cells(direction, release, grid);
  ASSERT_EQ(cells.moments.size(), kMomentShares.size());
  const auto [least, most] = std::pair(-20.0, 20.0);
  for (const auto& [c, log_moment] : cells.moments) {
    long double sum = 0;
    // Places lie within half a period of 0: no loss of one release is as large.
    for (int64_t k = -2048; k < 2048; ++k) {
      const long double loss = (static_cast<double>(k) + cells.shift) * grid.h;
      if (loss < least || loss > most) continue;
      sum += cells.mass[static_cast<size_t>(k) & (grid.n - 1)] * std::exp((c - grid.c) * loss + grid.log_scale);
    }
    EXPECT_GE(log_moment, static_cast<double>(std::log(sum))) << c;
    EXPECT_LE(log_moment, static_cast<double>(std::log(sum)) + 1e-6) << c;
  }
}
INSTANTIATE_TEST_SUITE_P(Covers, MorePrivate,
                         testing::Values(Cover{"Remove", Direction::kRemove, 9},
                                         Cover{"RemoveFewOutcomes", Direction::kRemove, 4},
                                         Cover{"Add", Direction::kAdd, 9}),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace ghostshard::accountant
