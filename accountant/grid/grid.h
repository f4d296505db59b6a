// delta(epsilon) of composed releases on a grid of losses, by Fourier transforms: the second, independent engine.
//
// Two runs bracket the truth: one with distributions that are certainly less private, one with distributions that are
// certainly more private (pld_cells.h). Both are tilted by e^(c·loss) first, so that rounding is relative to the tail
// that delta lives in and not to 1. All other errors are counted:
//   * The transform is circular with period P = N·h. A loss that is k·P away from its place enters with factor e^(ckP).
//     In the less private run it can only raise delta; in the more private one it is bounded by Chernoff and taken off.
//   * Losses beyond the window are bounded by Chernoff; those beyond the last cell count as infinite.
//   * The transforms round (grid_side.h). Each loses some u·log2 N of its input, and the power multiplies the error of
//     the first by the count. With small rates that would hide delta. Therefore the heaviest cell is left out of the
//     transforms, and rare losses go through a transform of their own (rare_cells.h).
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/direction_bound.h"

namespace ghostshard::accountant {

// kSmall: at most 2^15 grid points, in milliseconds. kLarge: at most 2^21. Both put many steps in blocks
// (grid_blocks.h).
enum class GridSize { kSmall, kLarge };

struct GridRequest {
  GridSize size = GridSize::kLarge;
  double added_by_mesh = 1e-5;  // to epsilon, if the size allows it; more if epsilon exceeds 100
  bool upper_only = false;      // then the lower end is 0, and half the time is saved
  // What all attempts together may cost, in cells and grid points of each side (some 100 ns each). The answer is then
  // the narrowest bracket so far: as certain, but wider. The first attempts are made whatever they cost.
  double most_work = std::numeric_limits<double>::infinity();
};

// The estimate is the middle. Nothing if no finite bound is found.
std::optional<DirectionBound> grid_epsilon(Direction direction, const std::vector<ComposedRelease>& phases, Delta delta,
                                           const GridRequest& request = {});
std::optional<DirectionBound> grid_delta(Direction direction, const std::vector<ComposedRelease>& phases,
                                         double epsilon, GridSize size = GridSize::kLarge);

}  // namespace ghostshard::accountant
