// A run of many steps as some hundred or thousand equal blocks of steps: each block is composed on a fine grid over the
// short range of its losses, put on the coarse grid of the whole run, and composed there. With T steps and a mesh h,
// connecting dots adds T·h²/4 to the variance of the loss; with sqrt(T) blocks the coarse mesh is charged sqrt(T) times
// only, and the fine one is T^(1/4) times finer.
//
// Bounds stay bounds. With A the exact (tilted) measure of a block on the fine grid and B what was computed:
//   * ||A - B|| in the 2-norm is at most the transform's rounding and twice what lies outside the fine window (circular
//     transforms put it inside), which Chernoff bounds; negative values of B are put to 0, which brings it nearer to A;
//   * delta is linear in each of its factors, so that A for B changes it by no more than that norm times those of the
//     others: this goes into the coarse run's rounding, times sqrt(coarse mesh/fine mesh) since delta's weights have so
//     much larger a norm on the fine grid;
//   * from B on everything is exact arithmetic on known numbers: connecting dots again makes it less private, merging
//     neighbours and moving them down more private (pld_cells.h), whatever positive measure B is.
#pragma once

#include <optional>
#include <vector>

#include "accountant/grid_side.h"
#include "accountant/grid_window.h"

namespace ghostshard::accountant {

struct BlockPlan {
  double blocks;                         // how many
  std::vector<double> in_block, rest;    // executions of each phase in one block, and in what is left after all
  double h;                              // fine mesh; as many points as the coarse grid has
  double start_of_block, start_of_rest;  // of the fine window
  Shape coarse;
};

// A plan for the run within this shape, with as few points as add no more than `tolerance` to epsilon; nothing where
// there are too few steps for it to help.
std::optional<BlockPlan> plan_blocks(const Sketches& sketches, const std::vector<ComposedRelease>& phases,
                                     const Shape& shape, double tolerance, size_t most_points);

std::vector<Piece> pieces_of_blocks(Direction direction, const std::vector<ComposedRelease>& phases,
                                    const BlockPlan& plan, bool less_private);

}  // namespace ghostshard::accountant
