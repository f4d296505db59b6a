// One Poisson-sampled Gaussian's privacy loss on a grid: a distribution that is certainly more private, and one that is
// certainly less. Both are measures tilted by e^(c·loss), so that a Fourier transform's rounding is relative to the
// mass far out in the tail.
//
// Cell i holds the losses in [ih, (i+1)h). Outcomes are monotone in the loss, so the cell's masses P and Q under both
// neighbours are differences of Gaussian tails.
//   Less private (upper): the dots are connected (Doroshenko et al. 2022, arXiv:2207.04380). P is split between the
//     cell's two ends so that P and Q keep their totals: (P - e^(ih) Q)/(1 - e^-h) goes to the right. The roundings of
//     this go to the right, those of P are added, and losses beyond the last cell count as infinite (`dropped`). Losses
//     below the first cell count as its least one. Boundaries are doubles (Outcomes::misplaced): losses in [a - r, b +
//     r] are dominated by two masses at a - r and b + r with the totals of P and Q, the first of them by one at a, the
//     second by two at b and b + h, of which the latter has the share (1 - e^-r)/(1 - e^-h) < r/(1 - e^-h).
//   More private (lower): each cell is merged into one outcome of loss log(P/Q) (post-processing). The outcome is moved
//     down to (i + a)h on the grid, or to (i - 1 + a)h if log(P/Q) with its rounding is below that. Any cells and any a
//     are sound; they are chosen so that little is moved. With a the heaviest cell lies on the grid (with small rates
//     it holds almost everything). The boundaries are moved, by up to 0.45·h, so that log(P/Q) lies in the middle.
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
  // The errors of the masses. An error relative to each mass by itself is as much relative to any sum over the composed
  // masses, times the count, since none is negative.
  double relative = 0;  // each mass to itself, where the exponent of the tilt is moderate
  double rounding = 0;  // sum of the moduli of the others'
  // (c', log E[e^(c'·loss)]), rounded up, without the infinite loss: for Chernoff's bound.
  std::vector<std::pair<double, double>> moments;
  double log_total = 0;  // at least the logarithm of the probability in all cells
};

struct GridShape {
  double h;          // mesh
  size_t n;          // N, a power of two
  double c;          // tilt
  double log_scale;  // about log E[e^(c·loss)]
  // The outcomes looked at. Mass beyond the end with large losses is dropped; mass beyond the other end is counted in
  // the cell there.
  double low, high;
  // The more private one is tuned to so many executions, and to delta at this epsilon. No part of a proof.
  double count = 1, epsilon = 0;
  // Only losses in [from, to), one of them at most finite: the others are looked at elsewhere (rare_cells.h).
  double from = -std::numeric_limits<double>::infinity();
  double to = std::numeric_limits<double>::infinity();
};

// Moments are taken at these multiples of the tilt.
inline constexpr std::array<double, 7> kMomentShares = {1.02, 1.06, 1.15, 1.3, 1.6, 2.0, 3.0};

TiltedCells less_private_cells(Direction direction, SampledGaussian release, const GridShape& shape);
TiltedCells more_private_cells(Direction direction, SampledGaussian release, const GridShape& shape);

}  // namespace ghostshard::accountant
