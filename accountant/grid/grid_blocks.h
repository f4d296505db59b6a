// A run of many steps as some hundred or thousand equal blocks of steps: each block is composed on a fine grid over the
// short range of its losses, put on the coarse grid of the whole run, and composed there. With T steps and a mesh h,
// connecting dots adds T·h²/4 to the variance of the loss; with sqrt(T) blocks the coarse mesh is charged sqrt(T) times
// only, and the fine one is T^(1/4) times finer. Rare large losses, for which a block's range would be long, stay out
// of it (rare_cells.h), and so do phases of few steps: both go on the coarse grid at once.
//
// Bounds stay bounds. With A the exact (tilted) measure of a block on the fine grid and B what was computed:
//   * circular transforms put what lies outside the fine window inside: B >= A but for rounding, and B <= A but for
//     rounding and for what lies outside, which Chernoff bounds. What any one mass of B may be off by is added to it,
//     or taken off; less privately, what lies beyond the window is an infinite loss besides;
//   * from there on everything is exact arithmetic on known numbers: connecting dots again makes it less private,
//     merging neighbours and moving them down more private (pld_cells.h), whatever positive measure it is.
#pragma once

#include <optional>
#include <vector>

#include "accountant/grid/grid_side.h"
#include "accountant/grid/grid_window.h"

namespace ghostshard::accountant {

struct BlockPlan {
  struct Part {
    std::vector<double> counts;     // common draws of each phase in one such block
    double times;                   // how many such blocks
    double start = 0;               // of the fine window
    double before = 0, beyond = 0;  // where e^(±theta·loss) bounds best what lies outside it: theta
  };
  // Blocks, and what is left after them: together every draw of a phase that is not whole; more privately, all but K.
  std::vector<Part> less_private, more_private;
  std::vector<Split> splits;      // of each phase
  std::vector<bool> whole;        // phases that are in no block
  std::vector<double> log_scale;  // of the common part of each
  double blocks;                  // how many
  double added;                   // to epsilon, about
  double h;                       // fine mesh; as many points as the coarse grid has
  Shape coarse;
};

// A plan for the run within this shape, with as few points as add no more than `tolerance` to epsilon; nothing where
// there are too few steps for it to help.
std::optional<BlockPlan> plan_blocks(const Sketches& sketches, const std::vector<ComposedRelease>& phases,
                                     const Shape& shape, double log_delta, double tolerance, size_t most_points);

std::vector<Piece> pieces_of_blocks(Direction direction, const std::vector<ComposedRelease>& phases,
                                    const BlockPlan& plan, bool less_private);

}  // namespace ghostshard::accountant
