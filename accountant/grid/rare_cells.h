// Rare large losses apart from the common ones. Of T executions let B be the measure of outcomes on one side of a split
// (the common ones) and R that of the others: the composition is Σ_k C(T,k)·R^k·B^(T-k). Grids for both at once must be
// as fine as common losses are and as long as rare ones, T times over. Apart, B^T goes on a short fine grid
// (grid_blocks.h) and R on a long coarse one, which then is charged for the few rare outcomes only.
//
//   Less private: B^T·(1 + R/|B|)^T, |B| the probabilities of B under P and Q. An execution that turns out rare tells
//   one
//     more draw from B besides, from B/|B_P| under P and from B/|B_Q| under Q: whoever sees more distinguishes better
//     (post-processing).
//   More private: B^(T-K)·|B|^K·(1 + R/|B|)^T, less the probability of more than K rare outcomes (Chernoff, binomial).
//   Up
//     to K of them: of the T - k draws from B, all but T - K are forgotten. What more of them there are is part of the
//     measure, and taken off as a whole.
//
// R/|B| has the probabilities R_P/|B_P|, R_Q/|B_Q| and so the loss of R less log(|B_P|/|B_Q|); to its grid belongs an
// atom of probability 1 and loss 0, exactly on it.
#pragma once

#include <limits>

#include "accountant/grid/pld_cells.h"

namespace ghostshard::accountant {

// Outcomes with losses of this size or more on the side where they have no bound: large ones where a unit is removed,
// negative ones where one is added. Infinity: none.
struct Split {
  double loss = std::numeric_limits<double>::infinity();
  double most_rare = 0;  // K
};

// The grid limited to the common ones.
GridShape common_part(Direction direction, const Split& split, GridShape grid);

// 1 + R/|B|, to be composed as often as the phase is executed. `once`: |B|^K, the rare ones' moving down, and what more
// than K of them can do, whatever the count.
struct RareCells {
  TiltedCells cells;
  struct Once {
    double log_factor = 0;  // of all masses
    double moved = 0;       // of all losses, in steps of the mesh
    double dropped = 0;     // probability taken off
  } once;
};
RareCells less_private_rare(Direction direction, SampledGaussian release, const Split& split, const GridShape& grid);
RareCells more_private_rare(Direction direction, SampledGaussian release, const Split& split, const GridShape& grid);

}  // namespace ghostshard::accountant
