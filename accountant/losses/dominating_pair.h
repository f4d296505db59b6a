// The pair of distributions (P, Q) that dominates a release, as tables of privacy losses log(P/Q) that are certainly
// less and certainly more private than it: the form in which a grid takes any mechanism.
//
// A release is given as cells: all outcomes whose loss lies in [low, high), with their probability under P and Q.
//   Less private: the dots are connected (Doroshenko et al. 2022, arXiv:2207.04380). A cell's P is split between the
//     losses low and high so that P and Q keep their totals. If low is -infinity all of it goes to high; if high is
//     +infinity, to an infinite loss.
//   More private: a cell becomes one outcome of loss log(P/Q) (post-processing); outcomes that Q never has are left
//   out.
// Both hold for masses that err: mass is added and losses are raised in the first, taken off and lowered in the second.
//
// What composes is the function E_P[(1 - e^(epsilon - loss))+] for all epsilon: of two releases it is the mean of one's
// over the other's losses. It grows with every mass and with every loss. So tables that err in the stated direction
// stay bounds in any composition, whether their masses add up to 1 or not.
#pragma once

#include <vector>

namespace ghostshard::accountant {

struct LossAtoms {
  std::vector<double> loss;  // ascending
  std::vector<double> mass;  // under the first of the two distributions
  double infinite = 0;       // its mass with an infinite loss
};

// (P, Q): what the release loses on removing a unit, and with the two exchanged, on adding one.
struct DominatingPair {
  struct Direction {
    LossAtoms less_private, more_private;
  };
  Direction remove, add;
};

// Outcomes with a loss in [low, high), or of loss `low` exactly if both are the same. The errors are absolute.
struct LossCell {
  double low, high;
  double p, q;
  double p_error = 0, q_error = 0;
};

// Cells in the order of their losses.
struct LossCells {
  std::vector<LossCell> cells;
  double loss_error = 0;  // of each boundary l: so much times 1 + |l|
};

// The release on a Poisson sample: P becomes (1 - q)·Q + q·P (Zhu et al. 2022, arXiv:2106.08567, Thm. 11). For removing
// and adding a unit, not for replacing one.
LossCells poisson_sampled(const LossCells& cells, double q);

DominatingPair dominating_pair_of(const LossCells& cells);

}  // namespace ghostshard::accountant
