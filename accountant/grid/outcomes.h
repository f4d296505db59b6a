// The outcomes of one Poisson-sampled Gaussian by their privacy loss, in which they are monotone: where losses begin
// and end, and the probability between two losses under both neighbours, with every rounding.
#pragma once

#include <cmath>
#include <utility>

#include "accountant/gaussian/sampled_gaussian.h"

namespace ghostshard::accountant {

// log(1 - q + q·e^u): the loss of an outcome x when a unit is removed, with u = (2x - 1)/(2 sigma²).
double log_mixture(double q, double u);

// The least and the largest loss of these outcomes.
std::pair<double, double> losses_of(Direction direction, SampledGaussian release, double low, double high);

class Outcomes {
 public:
  Outcomes(Direction direction, SampledGaussian release)
      : remove_(direction == Direction::kRemove),
        release_(release),
        log_q_(std::log(release.q)),
        nowhere_(40 * release.sigma + 40) {}

  struct Boundary {
    double zero, one;  // in standard deviations from 0 and from 1
  };
  // Between lesser and larger losses than this one, or than one that differs from it by misplaced() at most: outcomes
  // are doubles.
  Boundary at(double loss) const;
  double misplaced(double loss) const;
  Boundary below_all() const { return at_outcome(remove_ ? -nowhere_ : nowhere_); }
  Boundary above_all() const { return at_outcome(remove_ ? nowhere_ : -nowhere_); }

  struct Mass {
    double value, error;
  };
  struct Masses {
    Mass p;
    Mass lifted_q;  // Q·e^loss: of the size of P, even if Q alone is too small for a double
  };
  // loss: Q is lifted by e^loss; about the loss at the lower boundary.
  Masses between(const Boundary& low, const Boundary& high, double loss) const;

  // Probability P of larger losses, rounded up.
  double beyond(const Boundary& boundary) const;

 private:
  Boundary at_outcome(double x) const { return {x / release_.sigma, (x - 1) / release_.sigma}; }

  bool remove_;
  SampledGaussian release_;
  double log_q_;
  double nowhere_;
};

}  // namespace ghostshard::accountant
