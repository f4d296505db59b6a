// One Poisson-sampled Gaussian's privacy loss on a grid: a distribution that is certainly more private, and one that is
// certainly less, both as measures tilted by e^(c·loss), so that a Fourier transform's rounding is relative to what is
// far out in the tail.
//
// Cell i holds the losses in [ih, (i+1)h); outcomes are monotone in the loss, so that its masses P and Q under both
// neighbours are differences of Gaussian tails.
//   Less private (upper): connect the dots (Doroshenko et al. 2022, arXiv:2207.04380): P is split between the cell's
//     two ends so that P and Q keep their totals, (P - e^(ih) Q)/(1 - e^-h) to the right. Its roundings go to the
//     right, those of P are added, and what lies beyond the last cell is counted as an infinite loss (`dropped`).
//   More private (lower): each cell is merged into one outcome, whose loss is log(P/Q) (post-processing), and then
//     moved down to the grid (i + a)h; where log(P/Q) with its rounding is below that, to (i - 1 + a)h. Any cells and
//     any a would be sound; they are chosen so that little is moved: a such that the heaviest cell lies on the grid
//     (with small rates it holds almost everything), the boundaries by up to h/4 so that log(P/Q) lies in the middle.
#pragma once

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/gaussian/sampled_gaussian.h"

namespace ghostshard::accountant {

struct TiltedCells {
  std::vector<double> mass;  // of loss ((k mod N) + shift)·h, times e^(c·(k + shift)·h - log_scale)
  double shift = 0;          // a; 0 for the less private one
  double dropped = 0;        // probability of an infinite loss
  // How far off masses are. What is relative to each mass by itself is as much relative to any sum over the composed
  // ones, times the count, since none is negative: it needs no share of the whole.
  double relative = 0;  // each mass to itself, where the exponent of the tilt is moderate
  double rounding = 0;  // sum of the moduli of the others'
  // (c', log E[e^(c'·loss)]) of the less private one without the infinite loss, for Chernoff's bound.
  std::vector<std::pair<double, double>> moments;
  double log_total = 0;  // logarithm of the probability in all cells, or more
};

struct GridShape {
  double h;          // mesh
  size_t n;          // N, a power of two
  double c;          // tilt
  double log_scale;  // about log E[e^(c·loss)]
  // Outcomes looked at. Beyond the end where losses are large, mass is dropped; beyond the other it is counted in the
  // cell at that end.
  double low, high;
  // What the more private one is tuned to, and no part of a proof: so many executions, and delta at this epsilon.
  double count = 1, epsilon = 0;
  // Only losses in [from, to), one of them at most finite: the others are looked at elsewhere (rare_cells.h).
  double from = -std::numeric_limits<double>::infinity();
  double to = std::numeric_limits<double>::infinity();
};

// In units of the tilt: where the moments of the less private distribution are taken.
inline constexpr std::array<double, 7> kMomentShares = {1.02, 1.06, 1.15, 1.3, 1.6, 2.0, 3.0};

TiltedCells less_private_cells(Direction direction, SampledGaussian release, const GridShape& shape);
TiltedCells more_private_cells(Direction direction, SampledGaussian release, const GridShape& shape);

}  // namespace ghostshard::accountant
