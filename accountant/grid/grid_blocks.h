// A run of many steps as some hundred or thousand equal blocks of steps. Each block is composed on a fine grid over the
// short range of its losses, put on the coarse grid of the whole run, and composed there. With T steps and a mesh h,
// connecting dots adds T·h²/4 to the variance of the loss. With sqrt(T) blocks the coarse mesh is charged only sqrt(T)
// times, and the fine one is T^(1/4) times finer. Rare large losses would make a block's range long; they stay out of
// it (rare_cells.h), and so do phases of few steps. Both go on the coarse grid at once.
//
// Bounds stay bounds. Let A be the exact (tilted) measure of a block on the fine grid, and B the computed one.
//   * Circular transforms put losses outside the fine window inside it. So in the window B >= A but for rounding, and
//     B <= A but for rounding and for the losses outside, which Chernoff bounds. The error that any one mass of B may
//     have is added to it, or taken off. In the less private run losses beyond the window count as infinite besides,
//     and losses before it as the least in it: there too Chernoff bounds how much that is.
//   * From there on there is only exact arithmetic on known numbers. For any positive measure, connecting dots makes it
//     less private, and merging neighbours and moving them down makes it more private (pld_cells.h).
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
    double before = 0, beyond = 0;  // the theta for which e^(±theta·loss) bounds best the losses outside it
  };
  // Blocks, and the draws left after them. Less private: together every draw of a phase that is not whole. More
  // private: all of them but K.
  std::vector<Part> less_private, more_private;
  std::vector<Split> splits;      // of each phase
  std::vector<bool> whole;        // phases that are in no block
  std::vector<double> log_scale;  // of the common part of each
  double blocks;                  // how many
  double added;                   // to epsilon, about
  double h;                       // fine mesh; as many points as the coarse grid has
  Shape coarse;
};

// A plan for the run within this shape, with as few points as add no more than `tolerance` to epsilon. Nothing if there
// are too few steps for it to help.
std::optional<BlockPlan> plan_blocks(const Sketches& sketches, const std::vector<ComposedRelease>& phases,
                                     const Shape& shape, double log_delta, double tolerance, size_t most_points);

std::vector<Piece> pieces_of_blocks(Direction direction, const std::vector<ComposedRelease>& phases,
                                    const BlockPlan& plan, bool less_private);

}  // namespace ghostshard::accountant
