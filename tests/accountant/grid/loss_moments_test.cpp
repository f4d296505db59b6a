// Moments of cells on a grid, of which those that lie near each other share an exponential: beside one exponential for
// each cell, in long double.
#include "accountant/grid/loss_cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ghostshard::accountant {
namespace {

struct Grid {
  const char* name;
  double c, tilt, h, offset;
  std::vector<int64_t> places;  // in the order in which they come
};

void PrintTo(const Grid& grid, std::ostream* out) { *out << grid.name; }

std::vector<int64_t> from_to(int64_t first, int64_t last) {
  std::vector<int64_t> found;
  for (int64_t i = first; i <= last; ++i) found.push_back(i);
  return found;
}

// Each moves down by one, or by none.
std::vector<int64_t> some_moved_down(int64_t first, int64_t last) {
  std::vector<int64_t> found = from_to(first, last);
  for (size_t i = 0; i < found.size(); i += 3) --found[i];
  return found;
}

class LossMomentsOfCells : public testing::TestWithParam<Grid> {};

TEST_P(LossMomentsOfCells, AreThoseOfEachCellRoundedUp) {
  const auto& [name, c, tilt, h, offset, places] = GetParam();
  LossMoments moments(c, tilt, h, offset);
  std::vector<std::vector<long double>> terms(kMomentShares.size());  // logarithms
  std::mt19937 random(7);
  std::uniform_real_distribution<double> of_masses(0.1, 1.0);
  for (const int64_t i : places) {
    LossMoments::Masses masses;
    for (size_t j = 0; j < masses.size(); ++j) {
      masses[j] = of_masses(random);
      const long double loss = (static_cast<long double>(i) + offset) * h;
      terms[j].push_back(std::log(static_cast<long double>(masses[j])) +
                         (static_cast<long double>(moments.c(j)) - tilt) * loss);
    }
    moments.add(i, masses);
  }
  const auto found = moments.logs(-3);
  for (size_t j = 0; j < found.size(); ++j) {
    EXPECT_EQ(found[j].first, c * kMomentShares[j]);
    const long double top = *std::max_element(terms[j].begin(), terms[j].end());
    long double sum = 0;
    for (const long double term : terms[j]) sum += std::exp(term - top);
    const auto expected = static_cast<double>(top + std::log(sum) - 3);
    EXPECT_GE(found[j].second, expected);
    // What is added for 1e7 terms, and 8 roundings of the exponents.
    EXPECT_LE(found[j].second, expected + 3e-9 + 4e-15 * (std::abs(expected) + 3)) << "at share " << kMomentShares[j];
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, LossMomentsOfCells,
                         testing::Values(Grid{"OneCell", 2, 0, 0.1, 0, {5}},
                                         Grid{"ManyBlocks", 2, 0, 0.01, 0.25, from_to(-100, 1000)},
                                         Grid{"Tilted", 3, 3, 0.02, -0.4, from_to(-10, 500)},
                                         Grid{"MovedDown", 3, 3, 0.02, 0.5, some_moved_down(-10, 500)},
                                         Grid{"SteepWithinABlock", 40, 0, 0.2, 0, from_to(0, 300)},
                                         Grid{"SteeperThanABlock", 60, 0, 9, 0.1, from_to(0, 40)},
                                         Grid{"FarApart", 2, 0, 0.01, 0, {-4000, -3999, 0, 63, 64, 65, 90000}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ghostshard::accountant
