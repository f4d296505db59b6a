// The part of a moment on a vertical line that large losses make up, when a unit is removed.
//
// Where a unit is hardly ever drawn, or noise is little, nearly all outcomes have nearly the same, least loss, and M(c
// + it) does not fall for any t that a line could reach. These outcomes alone cannot add up to epsilon: they are taken
// off. With w as in contour_moments.h and v = q·e^u = w - 1 + q let
//   chi = (1 - e^(-s·v))^16,  M(z) = B(z) + G(z),  G(z) = E[chi·w^(1+z)].
// On the real axis 0 <= chi <= 1, so that B and G are the moments of two measures whose sum is that of the loss. Of all
// phases together the measure with the moment D = Π M - Π B is positive too, and no larger than that of Π M. Hence
// contour_line.h's rule and the bounds on its alias hold for D as they do for M, and delta exceeds what D gives by what
// Π B gives, which Chernoff bounds (small_losses.h). And D falls as fast as G does.
//
// The quadrature of G is that of contour_moments.h on a mesh of its own. Between Im x = 0 and pi/2·sigma² |e^(-sv)| is
// at most 1, hence |chi| <= 2^16, and |1 - e^(-sv)| <= |s·v|. The line Im x = y0 and its strip lie there, so that the
// error of the rule is at most 2^16 times that of the direct form of M, and so are the tails.
//
// The rest of the line: |G(c + it')| <= ∫ |integrand at x + iy| dx for all t' >= t, as there, by the same mesh: on a
// horizontal line |1 - e^(-sv)|² is the product of its values at x + iy and x - iy, which extends to complex x, where
// either factor is at most 2.
#pragma once

#include <complex>
#include <cstdint>
#include <functional>
#include <vector>

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

class LargeLosses {
 public:
  // How many nodes it would have. phase: one pair, sampled at a rate below 1.
  static int64_t nodes_needed(const ComposedRelease& phase, double c, double log_s);
  LargeLosses(const ComposedRelease& phase, double c, double log_s);

  // G(c + it)/M(c) of one execution at t = k·step, k = 0, …, n - 1, and a bound on its error. It is divided by the
  // number that LineMoment divides by.
  using Visitor = std::function<void(size_t k, std::complex<double> value, double error)>;
  void sweep(double step, size_t first, size_t end, const Visitor& visit) const;
  // About how many terms a sweep adds up: most nodes are soon damped below any use.
  double work(double step, size_t n) const;
  // An upper bound on log |G(c + it')/M(c)| of one execution for all t' >= t.
  double log_rest(double t) const;

  double count() const { return count_; }
  double log_m_error() const { return log_m_error_; }
  size_t nodes() const { return l_re_.size(); }

 private:
  static constexpr size_t kShifts = 48;  // that are tried for the rest: from the widest down to 1.4^-48 of it
  struct Frame;
  struct Shifted {
    bool known = false;
    std::vector<double> fixed, angle, mass, rounding;
  };
  void add_node(const Frame& frame, int64_t i);
  const Shifted& shifted(size_t index) const;
  double bound_at(size_t index, double t) const;

  double q_, sigma_, count_, c_, log_s_, log_m_ = 0, log_m_error_ = 0;
  double widest_angle_ = 0, error_ = 0, error_per_p_ = 0, left_out_ = 0, moduli_ = 0;
  std::vector<double> l_re_, l_im_, weight_re_, weight_im_, of_loss_;
  std::vector<double> u_, mass_, of_mass_;  // on the real axis, without chi
  mutable std::vector<Shifted> shifts_;
  mutable size_t last_shift_ = 0;
};

}  // namespace ghostshard::accountant
