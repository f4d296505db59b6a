// The part of a receipt that proves delta(epsilon) <= delta for one direction: a sum over nodes on a vertical line.
//
// As contour/contour_line.h, with two differences. The nodes beyond the last are bounded from one shift of each phase,
// so that a short checker can do it. And e^(-eps)·delta(eps), which is convex, may be averaged over a Gaussian of
// deviation `smoothing`: by Jensen that only adds, and the integrand falls like e^(-smoothing²·t²/2) even if the
// moments do not fall at all (few steps, tiny rates).
#pragma once

#include <complex>
#include <optional>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/contour/phase_moment.h"
#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant::receipt {

class Line {
 public:
  struct Request {
    double epsilon;          // near which the line is used
    double log_delta;        // what is to be proven there
    double smoothing = 0;    // times 1 + c: the deviation of the average
    double digits = 32;      // alias and rest are about e^-digits of delta
    double most_work = 2e7;  // of the checker, about in microseconds
  };
  // Nothing if the checker would have to do more work, or no line exists.
  static std::optional<Line> make(Direction direction, std::span<const ComposedRelease> phases, const Request& request);

  // What the receipt's numbers add up to, as doubles rounded up.
  double bound(double epsilon) const;
  nlohmann::json certificate(double epsilon) const;

 private:
  Line() = default;
  bool find_end(std::span<const PhaseMoment> moments, std::span<const ComposedRelease> phases, Direction direction,
                const Request& request);
  void take_integrand(std::span<const PhaseMoment> moments, size_t n, bool precise);
  std::vector<double> terms(double epsilon) const;
  double rest(double epsilon) const;

  double c_ = 0, period_ = 0, smoothing_ = 0;
  long double log_scale_ = 0;  // of M(c)
  double log_rest_ = 0;        // of the moduli beyond the last node, relative to M(c), without the kernel at c
  std::vector<double> shifts_;
  std::vector<std::complex<long double>> integrand_;
  std::vector<double> error_;
};

// About how many nodes the checker's mesh needs for one phase.
double mesh_nodes(Direction direction, const ComposedRelease& phase, double c, double shift, double t);

}  // namespace ghostshard::accountant::receipt
