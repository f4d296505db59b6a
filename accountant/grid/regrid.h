// Masses on a fine grid are put on a coarse one, so that the result is certainly less or certainly more private.
//
// This is exact arithmetic on given numbers. The masses may be any that are not negative. Every rounding is counted;
// that of a loss (its size beside the coarse mesh) goes in the direction that keeps the bound.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "accountant/grid/pld_cells.h"

namespace ghostshard::accountant {

// mass[j] of loss first + j·h, times e^(c·loss - log_scale).
struct FineMasses {
  double first, h, c, log_scale;
  std::vector<double> mass;
};

// Puts pairs (k, mass of loss (k + shift)·h times e^(c·loss - log_scale)) on n places. Moments and total are measured
// from these numbers.
TiltedCells placed_on_grid(const std::vector<std::pair<int64_t, double>>& placed, double shift, const GridShape& grid,
                           double log_scale);

// Less private: each loss is split between its neighbours on the coarse grid so that P and Q keep their totals.
TiltedCells connected_dots(const FineMasses& fine, const GridShape& grid);

// More private: neighbours are merged into one outcome of loss log(P/Q), which is moved down to the coarse grid.
TiltedCells merged_neighbours(const FineMasses& fine, const GridShape& grid);

}  // namespace ghostshard::accountant
