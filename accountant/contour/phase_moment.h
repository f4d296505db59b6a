// The moment of one phase on a vertical line: of one pair, or of a mixture of pairs whose coin everybody sees.
//
// M(c+it) of a mixture is Σ weight·M_j(c+it). Relative to M(c) each M_j(c+it)/M_j(c) enters with the share
// weight·M_j(c)/M(c), less 1, so that a phase that hardly reveals anything keeps its digits, as in contour_moments.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "accountant/contour/contour_moments.h"

namespace ghostshard::accountant {

class PhaseMoment {
 public:
  static int64_t nodes_needed(Direction direction, const ComposedRelease& phase, double c);
  PhaseMoment(Direction direction, const ComposedRelease& phase, double c, bool precise);

  // As LineMoment's.
  long double log_scale() const { return log_scale_; }
  template <class Real>
  void sweep(Real step, size_t first, size_t end, const LineMoment::Visitor& visit) const;
  double log_rest(double t) const;
  double log_most() const;  // the same for all t, without a look at them: |M| <= M(c)
  // Where log_rest looks first: near the best shift of another phase. It bounds less from there alone if that is bad.
  void look_near(const PhaseMoment& other) const;
  LineMoment::ShiftedRest log_rest_at_one_shift(double t) const;  // of one pair, not of a mixture
  size_t nodes() const;
  double count() const { return count_; }
  LineMoment& pair() { return parts_.front(); }  // if it is no mixture

 private:
  LineMoment::Value mixed(std::complex<long double> less_one, double error) const;

  double count_;
  bool mixture_;
  std::vector<LineMoment> parts_;    // of a mixture: one execution each
  std::vector<long double> shares_;  // of M(c); what is left of 1 has no loss
  double nothing_ = 0;
  long double log_scale_ = 0;
  double of_shares_ = 0;  // rounding of the shares and of log_scale_, of one execution
  double most_ = 0;       // by how much M(c), divided as values are, may exceed 1
};

// An upper bound on log |M(c+it')/M(c)| of all of them together, for all t' >= t. If those with few nodes bring it to
// `enough`, the others are not looked at.
double log_rest_of_all(std::span<const PhaseMoment> moments, double t, double enough);

}  // namespace ghostshard::accountant
