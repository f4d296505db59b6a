// Masses put on a coarser grid, against the same masses where they were: delta in extended precision, term by term.
#include "accountant/grid/regrid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <random>

namespace ghostshard::accountant {
namespace {

struct Regrid {
  const char* name;
  double first, h;      // fine grid
  double ratio;         // of the meshes
  double c;             // tilt
  double share_filled;  // of the fine points; 0: all, and smoothly
};

void PrintTo(const Regrid& c, std::ostream* out) { *out << c.name; }

class OnACoarserGrid : public testing::TestWithParam<Regrid> {
 protected:
  static constexpr size_t kFine = 512;
  static constexpr size_t kCoarse = 512;

  OnACoarserGrid()
      : fine_{.first = GetParam().first,
              .h = GetParam().h,
              .c = GetParam().c,
              .log_scale = GetParam().c * GetParam().first,
              .mass = {}},
        grid_{.h = GetParam().h * GetParam().ratio,
              .n = kCoarse,
              .c = GetParam().c,
              .log_scale = 0,
              .low = 0,
              .high = 0} {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<> uniform(0, 1);
    for (size_t j = 0; j < kFine; ++j) {
      const double z = (static_cast<double>(j) - 170) / 60;
      const double smooth = std::exp(-z * z / 2);
      const double filled = GetParam().share_filled;
      const bool fill = uniform(random) < filled;
      fine_.mass.push_back(filled == 0 ? smooth : (fill ? smooth * uniform(random) : 0.0));
    }
  }

  // Calls visit(loss beyond `first`, probability) for all fine points, or all cells.
  using Visitor = std::function<void(long double, long double)>;
  void for_each_fine(const Visitor& visit) const {
    for (size_t j = 0; j < kFine; ++j) {
      const long double away = static_cast<long double>(fine_.h) * static_cast<long double>(j);
      visit(away, fine_.mass[j] * std::exp(-fine_.c * away));
    }
  }
  void for_each_cell(const TiltedCells& cells, const Visitor& visit) const {
    const auto base = static_cast<int64_t>(std::floor(fine_.first / grid_.h)) - 8;
    for (size_t i = 0; i < kCoarse; ++i) {
      const int64_t k = base + static_cast<int64_t>(i);
      const long double away =
          (static_cast<long double>(k) + static_cast<long double>(cells.shift)) * static_cast<long double>(grid_.h) -
          static_cast<long double>(fine_.first);
      visit(away, cells.mass[static_cast<size_t>(k) & (kCoarse - 1)] * std::exp(-fine_.c * away));
    }
  }
  // of losses beyond `away`
  static long double delta(long double away, const std::function<void(const Visitor&)>& for_each) {
    long double sum = 0;
    for_each([&](long double loss, long double mass) {
      if (loss > away) sum += mass * -std::expm1(away - loss);
    });
    return sum;
  }
  long double exact(long double away) const {
    return delta(away, [&](const Visitor& visit) { for_each_fine(visit); });
  }
  long double found(const TiltedCells& cells, long double away) const {
    return delta(away, [&](const Visitor& visit) { for_each_cell(cells, visit); });
  }

  static constexpr long double kAdding = 1e-15L;  // thousands of terms in long double
  FineMasses fine_;
  GridShape grid_;
};

TEST_P(OnACoarserGrid, ConnectedDotsAreLessPrivate) {
  const TiltedCells cells = connected_dots(fine_, grid_);
  for (int i = -20; i < 500; ++i) {
    const long double away = fine_.h * (i + 0.37L);
    EXPECT_GE(found(cells, away) * (1 + cells.relative + kAdding), exact(away)) << i;
  }
}

TEST_P(OnACoarserGrid, ConnectedDotsKeepTheirTotalWithinTheirRounding) {
  const TiltedCells cells = connected_dots(fine_, grid_);
  long double before = 0;
  long double after = 0;
  for_each_fine([&](long double, long double mass) { before += mass; });
  for_each_cell(cells, [&](long double, long double mass) { after += mass; });
  EXPECT_LE(std::abs(after / before - 1), cells.relative + kAdding);
  EXPECT_LT(cells.relative, 0.01);
}

TEST_P(OnACoarserGrid, MergedNeighboursAreMorePrivate) {
  const TiltedCells cells = merged_neighbours(fine_, grid_);
  for (int i = -20; i < 500; ++i) {
    const long double away = fine_.h * (i + 0.37L);
    EXPECT_LE(found(cells, away) * (1 - cells.relative - kAdding), exact(away)) << i;
  }
  EXPECT_GT(found(cells, -100 * fine_.h), 0);  // something is left
}

TEST_P(OnACoarserGrid, MergedNeighboursGainNothingBeyondTheirRounding) {
  const TiltedCells cells = merged_neighbours(fine_, grid_);
  long double before = 0;
  long double after = 0;
  for_each_fine([&](long double, long double mass) { before += mass; });
  for_each_cell(cells, [&](long double, long double mass) { after += mass; });
  EXPECT_LE(after / before - 1, cells.relative + kAdding);
  EXPECT_LT(cells.relative, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Masses, OnACoarserGrid,
                         testing::Values(Regrid{"Dense", 0.3, 1e-3, 7.3, 1, 1},
                                         Regrid{"Coarse", -1.7, 1e-3, 61.7, 2, 1},
                                         // Where log(P/Q) of neighbours cannot be put on the grid: it is moved down.
                                         Regrid{"Lumps", 0.3, 1e-3, 5.1, 1, 0.02},
                                         Regrid{"LumpsCoarse", 0.3, 1e-2, 17.3, 3, 0.01},
                                         // Losses of 4e13 steps of the coarse mesh, rounded in their last digits.
                                         Regrid{"FarFromZero", 4096.3, 1e-11, 9.7, 1, 1},
                                         Regrid{"FarFromZeroLumps", 4096.3, 1e-11, 3.1, 1, 0.05},
                                         Regrid{"FarFromZeroTilted", 4096.3, 1e-11, 9.7, 1e7, 1},
                                         Regrid{"FarFromZeroSmooth", 4096.3, 1e-11, 19.7, 1, 0},
                                         Regrid{"FurtherFromZeroSmooth", 9111.1, 1e-11, 31, 1, 0},
                                         Regrid{"FarFromZeroTiltedSmooth", 4096.3, 1e-11, 19.7, 1e7, 0},
                                         Regrid{"FarBelowZeroTiltedSmooth", -5000.7, 1e-11, 8, 1e7, 0}),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace ghostshard::accountant
