// Rare large losses, kept apart from the common ones. Of T executions let B be the measure of the outcomes on one side
// of a split (the common ones), and R that of the others. The composition is Σ_k C(T,k)·R^k·B^(T-k). A grid for both
// must be as fine as common losses are and as long as rare ones, T times over. Apart, B^T goes on a short fine grid
// (grid_blocks.h) and R on a long coarse one, which is then charged for the few rare outcomes only.
//
//   Less private: B^T·(1 + R/|B|)^T, |B| the probabilities of B under P and Q. Each execution with a rare outcome shows
//     one more draw from B besides: from B/|B_P| under P, from B/|B_Q| under Q. Whoever sees more distinguishes better
//     (post-processing).
//   More private: B^(T-K)·|B|^K·(1 + R/|B|)^T, less the probability of more than K rare outcomes (Chernoff, binomial).
//     With k <= K rare outcomes, all but T - K of the T - k draws from B are forgotten. The part of the measure with
//     k > K is taken off as a whole.
//
// R/|B| has the probabilities R_P/|B_P| and R_Q/|B_Q|, hence the loss of R less log(|B_P|/|B_Q|). Its grid also holds
// an atom of probability 1 and loss 0, exactly on a point.
#pragma once

#include <limits>

#include "accountant/grid/pld_cells.h"

namespace ghostshard::accountant {

// Rare outcomes have losses of this size or more on the side where losses have no bound: large losses if a unit is
// removed, negative ones if one is added. Infinity: there are none.
struct Split {
  double loss = std::numeric_limits<double>::infinity();
  double most_rare = 0;  // K
};

// The grid limited to the common ones.
GridShape common_part(Direction direction, const Split& split, GridShape grid);

// 1 + R/|B|, to be composed as often as the phase is executed. `once` counts once, whatever the count: |B|^K, the
// moving down of the rare outcomes, and the probability of more than K of them.
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
