// Distributions of losses on a grid, tilted, and composed by Fourier transforms: one run of grid.h, from above or from
// below, with its roundings counted.
#pragma once

#include <complex>
#include <cstdint>
#include <utility>
#include <vector>

#include "accountant/grid_window.h"
#include "accountant/pld_cells.h"

namespace ghostshard::accountant {

// `count` times the same cells, tilted with log_scale.
struct Piece {
  TiltedCells cells;
  double count;
  double log_scale;
};

// The circular convolution of cells on a grid of n points (a power of two), each to a power, and a bound in the 2-norm
// on what rounding makes of it. A transform is off by at most 7·u·log2 n of the 2-norm of its result, and each of its
// values by as much of the sum of the moduli that went into it (Higham 2002, Accuracy and Stability, Thm. 24.2 and the
// induction in its proof: what a butterfly adds is a sum over some of the inputs, turned). The latter is what the power
// multiplies: by the count, and by |value|^(count - 1), which is nothing for all but few.
class CircularPower {
 public:
  explicit CircularPower(size_t n);
  void add(const TiltedCells& cells, double count);
  struct Density {
    std::vector<double> mass;
    double rounding;
  };
  Density density() &&;

 private:
  double transform_;
  double rounding_ = 0;              // of what is known in the 2-norm only
  std::vector<double> log_modulus_;  // of the product, rounded up, at each frequency
  std::vector<double> relative_;     // its error
  std::vector<std::complex<double>> log_spectrum_;
};

// Cells of every phase, to be composed as often as it was executed.
std::vector<Piece> pieces_of_phases(Direction direction, const std::vector<ComposedRelease>& phases, const Shape& shape,
                                    bool less_private);

// What lies in the window, as suffix sums from which delta is read off.
class Side {
 public:
  Side(const std::vector<Piece>& pieces, const Shape& shape, bool less_private);

  // A bound on delta, from above or below.
  double delta(double epsilon) const;

  // (c', log E[e^(c'·loss)]) without the infinite loss; and the logarithm of the total mass, or 0 where that is less.
  const std::vector<std::pair<double, double>>& moments() const { return moments_; }
  double log_total() const { return log_total_; }
  double period() const { return period_; }

 private:
  double h_, c_;
  bool less_private_;
  double log_scale_ = 0, dropped_ = 0, rounding_ = 0, log_base_ = 0, origin_ = 0, period_ = 0, log_total_ = 0;
  int64_t start_ = 0;
  std::vector<double> suffix_, suffix_tilted_;
  std::vector<std::pair<double, double>> moments_;
};

// What circular transforms may have added to the delta of the more private run: see contour_line.h, the alias.
double alias(const Side& upper, const Side& lower, double c, double epsilon);

}  // namespace ghostshard::accountant
