// Distributions of losses on a grid, tilted, and composed by Fourier transforms: one run of grid.h, from above or from
// below, with its roundings counted.
#pragma once

#include <complex>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "accountant/grid/grid_window.h"
#include "accountant/grid/pld_cells.h"
#include "accountant/grid/rare_cells.h"
#include "accountant/grid/real_transform.h"

namespace ghostshard::accountant {

// `count` times the same cells, tilted with log_scale.
struct Piece {
  TiltedCells cells;
  double count;
  double log_scale;
  RareCells::Once once{};  // for all executions together
};

// The circular convolution of cells on a grid of n points (a power of two), each to a power, and a bound in the 2-norm
// on its rounding. real_transform.h bounds the error of a transform in the 2-norm and value by value. The power
// multiplies the error of a value by the count and by |value|^(count - 1), which is negligible for all but few values.
//
// With small rates one cell holds almost everything, |value| is near 1 everywhere, and delta far below 1. Therefore the
// heaviest cell a takes no part in the transforms. In (a + S)^count = a^count·(1 + S/a)^count the power of a is a
// factor common to all frequencies, whose rounding is relative to the result, and S is transformed without it. If
// a^count is not negligible, ((1 + S/a)^count - 1) is transformed back and a^count is put in its place.
class CircularPower {
 public:
  explicit CircularPower(size_t n);
  void add(const TiltedCells& cells, double count);
  // The masses, and their roundings. `in_sum` is the rounding, as far as it comes from the spectrum, of a sum over the
  // masses from some place on with the weights e^(-cs)·(1 - e^-s), s the distance to a place less than a step before
  // it. The transform of these weights is at most (1 - e^-h)/(|1 - aw||1 - bw|) at the root of unity w, with a =
  // e^(-ch) and b = e^(-(c+1)h), so the low frequencies count most. The weights beyond the window, which a sum lacks,
  // count `in_cut` times, relative to the first weight.
  struct Density {
    std::vector<double> mass;
    double each;    // the error that one mass may have
    double beside;  // 2-norm of the errors that do not come from the spectrum
    double in_sum, in_cut;
    double relative;  // of all masses alike, besides
  };
  Density density(double h, double c) &&;

 private:
  RealTransform fourier_;
  RootsOfUnity roots_;
  double transform_;
  double relative_ = 0;       // of all masses, as a logarithm
  double log_heaviest_ = 0;   // of the product of all a^count kept apart
  double heaviest_size_ = 0;  // sum of the moduli of their logarithms
  double pieces_ = 0;
  bool all_split_ = true;
  int64_t place_ = 0;                // of the product of the heaviest
  std::vector<double> log_modulus_;  // of the product, rounded up, at each frequency
  std::vector<double> error_;        // relative to it
  std::vector<double> size_;         // sum of the moduli of the logarithms
  std::vector<std::complex<double>> log_spectrum_, spectrum_;
};

// The cells of one phase, or of every phase, to be composed as often as the phase was executed.
Piece piece_of_phase(Direction direction, const ComposedRelease& phase, const Shape& shape, size_t index,
                     bool less_private);
std::vector<Piece> pieces_of_phases(Direction direction, const std::vector<ComposedRelease>& phases, const Shape& shape,
                                    bool less_private);

// The composed masses in the window as suffix sums, from which delta is read off.
class Side {
 public:
  Side(const std::vector<Piece>& pieces, const Shape& shape, bool less_private);

  // A bound on delta, from above or below.
  double delta(double epsilon) const;
  // The share of the transforms' rounding in it.
  double rounding_share(double epsilon) const;

  // (c', log E[e^(c'·loss)]) without the infinite loss; and an upper bound on the logarithm of the total mass.
  const std::vector<std::pair<double, double>>& moments() const { return moments_; }
  double log_total() const { return log_total_; }
  double period() const { return period_; }

 private:
  struct Read {
    double sum, noise, error;  // relative to the scale
  };
  std::optional<Read> read(double epsilon) const;

  double h_, c_;
  bool less_private_, nothing_;  // nothing: no pieces could be made
  double log_scale_ = 0, dropped_ = 0, rounding_ = 0, relative_ = 0, in_sum_ = 0, in_cut_ = 0, adding_ = 0,
         log_base_ = 0, origin_ = 0, period_ = 0, log_total_ = 0;
  int64_t start_ = 0;
  std::vector<double> suffix_, suffix_tilted_;
  std::vector<std::pair<double, double>> moments_;
};

// An upper bound on what circular transforms added to the delta of the more private run: losses k periods away, k >= 1,
// by Chernoff and by its own moments. Those of the less private run would not do: it leaves out what it counts as
// infinite.
double alias(const Side& lower, double c, double epsilon);

}  // namespace ghostshard::accountant
