// What a grid is planned by, beside its definition: how far it is moved down, and what connecting dots adds.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "accountant/grid/grid_window.h"
#include "accountant/grid/misplaced.h"

namespace ghostshard::accountant {
namespace {

TEST(CheapestWayDown, CostsNoMoreThanAnyOtherOne) {
  constexpr int kFirst = 1;
  constexpr int kLast = 40;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> share(0, 1);
  for (int trial = 0; trial < 50; ++trial) {
    struct Cell {
      double excess, weight;
    };
    std::vector<Cell> cells;
    const double exponent = 12 * share(random);
    for (int i = 0; i < 30; ++i)
      cells.push_back({(share(random) < 0.7 ? -1 : 1) * std::exp(-exponent * share(random)) / 2, share(random)});
    // A weight that is no number, or 0, costs nothing.
    cells.push_back({-0.4, 0});
    cells.push_back({-0.4, std::numeric_limits<double>::infinity()});
    CheapestWayDown down(kFirst, kLast);
    for (const Cell& cell : cells) down.add(cell.excess, cell.weight);
    const auto cost = [&](double moved) {
      double sum = 0;
      for (const auto& [excess, weight] : cells)
        if (std::isfinite(weight)) sum += weight * (excess + moved + (excess + moved < 0 ? 1 : 0));
      return sum;
    };
    const double found = cost(down.power_of_half());
    for (int k = kFirst; k <= kLast; ++k) EXPECT_LE(found, cost(std::pow(0.5, 0.5 * k)) + 1e-12) << trial << " " << k;
  }
}

TEST(AddedVariance, IsTheSumOverAllLossesForAnyMesh) {
  const std::vector<ComposedRelease> phases = {{{0.01, 0.6}, 500}, {{0.3, 4.0}, 20}, {{1e-6, 0.2}, 1e5}};
  for (const Direction direction : {Direction::kRemove, Direction::kAdd}) {
    const Sketches sketches(direction, phases, std::log(1e-6));
    for (const double c : {0.0, 0.7, 12.0}) {
      const AddedVariance of(sketches, c);
      for (double h = 1e-9; h < 1e3; h *= 2.7) {
        const double all = sketches.added_variance(h, c);
        EXPECT_NEAR(of.at(h), all, 1e-12 * all) << h;
      }
    }
  }
}

}  // namespace
}  // namespace ghostshard::accountant
