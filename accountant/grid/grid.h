// delta(epsilon) of composed releases on a grid of losses, by Fourier transforms: the second, independent engine.
//
// Two runs bracket the truth: one with distributions that are certainly less private, one with distributions that are
// certainly more private (pld_cells.h). Both are tilted by e^(c·loss) first, so that rounding is relative to the tail
// that delta lives in and not to 1. Everything else is counted:
//   * the transform is circular with period P = N·h: a loss that is k·P away from its place enters with factor e^(ckP).
//   In the
//     less private run it can only raise delta; in the more private one it is bounded by Chernoff and taken off;
//   * losses beyond the window are bounded by Chernoff, those beyond the last cell are infinite;
//   * rounding of the transforms (grid_side.h): each loses some u·log2 N of what went into it, and the power
//     multiplies the first one's error by the count. With small rates that would hide delta, but for the heaviest cell
//     not going in, and for rare losses going into a transform of their own (rare_cells.h).
#pragma once

#include <optional>
#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/direction_bound.h"

namespace ghostshard::accountant {

// kSmall: at most 2^15 grid points, for milliseconds. kLarge: at most 2^21. Both: many steps in blocks (grid_blocks.h).
enum class GridSize { kSmall, kLarge };

struct GridRequest {
  GridSize size = GridSize::kLarge;
  double added_by_mesh = 1e-5;  // to epsilon, more where that exceeds 100, if the size allows it
  bool upper_only = false;      // the lower end is 0 then, and half the time is saved
};

// estimate: the middle. Nothing where no finite bound is found.
std::optional<DirectionBound> grid_epsilon(Direction direction, const std::vector<ComposedRelease>& phases, Delta delta,
                                           const GridRequest& request = {});
std::optional<DirectionBound> grid_delta(Direction direction, const std::vector<ComposedRelease>& phases,
                                         double epsilon, GridSize size = GridSize::kLarge);

}  // namespace ghostshard::accountant
