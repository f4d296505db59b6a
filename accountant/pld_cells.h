// One Poisson-sampled Gaussian's privacy loss on a grid: a distribution that is certainly more private, and one that is
// certainly less, both as measures tilted by e^(c·loss), so that a Fourier transform's rounding is relative to what is
// far out in the tail.
//
// Cell i holds the losses in [ih, (i+1)h); outcomes are monotone in the loss, so that its masses P and Q under both
// neighbours are differences of Gaussian tails.
//   Less private (upper): connect the dots (Doroshenko et al. 2022, arXiv:2207.04380): P is split between the cell's
//   two
//     ends so that P and Q keep their totals, (P - e^(ih) Q)/(1 - e^-h) to the right. Its roundings go to the right,
//     those of P are added, and what lies beyond the last cell is counted as an infinite loss (`dropped`).
//   More private (lower): each cell is merged into one outcome, whose loss is log(P/Q) (post-processing), and then
//   moved
//     down to the grid (i + a)h; where log(P/Q) with its rounding is below that, to (i - 1 + a)h. a is chosen near 1/2,
//     and the boundaries are moved by up to h/4 beforehand so that log(P/Q) lies where it should: any cells would be
//     sound.
#pragma once

#include <utility>
#include <vector>

#include "accountant/sampled_gaussian.h"

namespace ghostshard::accountant {

struct TiltedCells {
  std::vector<double> mass;  // of loss ((k mod N) + shift)·h, times e^(c·k·h - log_scale)
  double shift = 0;          // a; 0 for the less private one
  double dropped = 0;        // probability of an infinite loss
  // (c', log E[e^(c'·loss)]) of the less private one without the infinite loss, for Chernoff's bound.
  std::vector<std::pair<double, double>> moments;
};

struct GridShape {
  double h;          // mesh
  size_t n;          // N, a power of two
  double c;          // tilt
  double log_scale;  // about log E[e^(c·loss)]
  double reach;      // standard deviations of the outcome beyond which mass is dropped
};

TiltedCells less_private_cells(Direction direction, SampledGaussian release, const GridShape& shape);
TiltedCells more_private_cells(Direction direction, SampledGaussian release, const GridShape& shape);

}  // namespace ghostshard::accountant
