// The moment generating function M(z) = E[e^(z·loss)] of one Poisson-sampled Gaussian's privacy loss, on the real axis
// and on a vertical line, with an error bound that is proven and not estimated.
//
// Let w(x) = 1 - q + q·e^u, u = (2x - 1)/(2 sigma²), x ~ N(0, sigma²). Then M(z) = E[w^p], with p = 1 + z if a unit is
// removed and p = -z if one is added. Since E[w - 1] = 0,
//   M(z) - 1 = E[e2(p·l) + p·d],  l = log w,  d = l - (w - 1),  e2(y) = e^y - 1 - y,
// Nothing cancels in this form: count·log M keeps its digits at count = 1e8 and q = 1e-7.
//
// Quadrature. The trapezoid rule runs on the line Im x = y0, y0 > 0 for z in the upper half plane (mirrored if a unit
// is added). For 0 <= Im x < pi·sigma², 0 <= arg w <= Im x/sigma², and |w(x + iy)| lies between w(x)·cos(y/(2 sigma²))
// and w(x). So |w^p| <= w^(1+c)·e^(-t·arg w) <= w^(1+c), *whatever t is*. On the strip of half width d <= y0 around the
// line the integrand is bounded by e^((y0+d)²/(2 sigma²)) times a real moment, and the rule's error by (Trefethen,
// Weideman 2014, SIAM Review 56(3), Thm. 5.1)
//   2·e^((y0+d)²/(2 sigma²))·(M(c)·S + 1 + 2q|p|)/(e^(2 pi d/h) - 1),
// S = cos((y0+d)/(2 sigma²))^-c if a unit is added, else 1.
// One mesh of some hundred points serves every t.
//
// The rest of the line. For any y, |M(c+it)| <= B_y(t) = ∫ |integrand at x + iy| dx. B_y falls with t since arg w >= 0:
// one real integral bounds |M| for *all* larger t. Its integrand extends from x to x + iv with a modulus that is
// bounded as above (arg w(x+iy) becomes [arg w(x+i(y+v)) + arg w(x+i(y-v))]/2 >= 0, arg being odd and rising in the
// imaginary part), so the same mesh integrates it. For q = 1 the best y gives |M| exactly.
//
// The error counts the nodes left out, the rounding of each term, and the tails beyond the first and the last node. In
// the tails the integrand falls at least as fast as a Gaussian centred at 1 + c (remove) or -c (add).
#pragma once

#include <array>
#include <complex>
#include <cstdint>
#include <functional>
#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/moment_strip.h"

namespace ghostshard::accountant {

// A sum over nodes is kept in so many partial sums: roundings then do not add up over all nodes.
inline constexpr size_t kLanes = 8;

// M(c + it)^count for t >= 0, relative to M(c)^count.
class LineMoment {
 public:
  // The number of nodes it would have, before it is made. If sigma² is small there are too many.
  static int64_t nodes_needed(Direction direction, const ComposedRelease& composed, double c);
  // real: real_moment(…, c).
  // precise: nodes and sums are in long double, for at<long double>. An integral over t that cancels needs them.
  LineMoment(Direction direction, const ComposedRelease& composed, double c, const RealMoment& real, bool precise);
  // The logarithm of M(c)^count as every value is divided by it.
  long double log_scale() const;

  struct Value {
    std::complex<long double> log_power;  // of the quotient; its real part is rounded up if the error is large
    double relative_error;                // |computed - true| <= relative_error·|e^log_power|
  };
  template <class Real>  // double, or long double if precise
  Value at(Real t) const;

  // at(k·step) for k = first, …, end - 1, from one to the next: many times faster than one by one (contour_sweep.cpp).
  using Visitor = std::function<void(size_t k, const Value&)>;
  template <class Real>
  void sweep(Real step, size_t first, size_t end, const Visitor& visit) const;

  // An upper bound on log |M(c+it')/M(c)|^count for all t' >= t.
  double log_rest(double t) const;
  void look_near(const LineMoment& other) const { last_shift_ = other.last_shift_; }
  // The same from one shift of at most 0.3·pi·sigma², for a reader who checks it with one mesh.
  struct ShiftedRest {
    double log_rest, shift;
  };
  ShiftedRest log_rest_at_one_shift(double t) const;
  size_t nodes() const { return l_re_.size(); }

  // The shifts y that are tried have the angles y/sigma² = angle_of(0), …, angle_of(kShifts - 1), falling.
  static constexpr size_t kShifts = 64;  // down to 1.4^-64 of the widest: 4e-10
  double angle_of(size_t index) const;
  void limit_angle(double widest);
  // An upper bound on the logarithm of B_y(t)/M(c) of one execution at this shift; 0 says nothing.
  double log_bound(size_t index, double t) const;
  // About as much, from some of the nodes: no bound, but it says which shift is a good one.
  double log_bound_about(size_t index, double t) const;
  double log_m() const { return log_m_; }  // of one execution: at M(c), of which log_m_error() is the error
  double log_m_error() const { return log_m_error_; }
  double sigma() const { return sigma_; }

 private:
  // B_y for one y: B_y(t)/M(c) - 1 = Σ mass·expm1(fixed - t·angle).
  struct Shifted {
    std::vector<double> fixed, angle;    // empty if they are not known
    std::vector<double> size, rounding;  // of fixed's parts; relative, of these and of angle
  };
  struct PreciseNode {
    std::complex<long double> l, weighted_d, w;
  };
  template <class Real>
  std::array<Real, 6> node_as(size_t j) const {
    if constexpr (sizeof(Real) > sizeof(double)) {
      const PreciseNode& node = precise_nodes_[j];
      return {node.l.real(),          node.l.imag(), node.weighted_d.real(),
              node.weighted_d.imag(), node.w.real(), node.w.imag()};
    } else {
      return {l_re_[j], l_im_[j], weighted_d_re_[j], weighted_d_im_[j], w_re_[j], w_im_[j]};
    }
  }
  struct Frame;
  struct Sums;
  void add_node(const Frame& frame, int64_t i, Sums& sums);
  void add_precise_node(const Frame& frame, int64_t i);
  // Adds the roundings of the last node to the errors of the forms that M is computed in.
  void add_roundings(const Frame& frame, double log_size_d, double log_size_v, double tilted, double tilted_phase,
                     Sums& sums);
  void add_tails(const Frame& frame, Range nodes, Sums& sums) const;
  bool in_excess_form(double t) const;
  template <class Real>
  Value direct_at(Real t) const;
  template <class Real>
  Value excess_at(Real t) const;
  void sweep_direct(double step, size_t first, size_t n, const Visitor& visit) const;
  template <class Real>
  class ExcessSweep;
  Value finish(std::complex<double> m, double error) const;
  template <class Real>
  Value finish_excess(Real re, Real im, double error) const;  // of M - 1
  Shifted shifted_at(size_t index, size_t stride) const;
  const Shifted& shifted(std::vector<Shifted>& known, size_t index, size_t stride) const;

  Direction direction_;
  double q_, sigma_, count_, c_, log_m_, log_m_error_;
  bool exact_ = false;       // q = 1: closed form
  bool use_excess_ = false;  // M(c) is small enough for the form M - 1
  std::vector<double> l_re_, l_im_, weighted_d_re_, weighted_d_im_, w_re_, w_im_, tilted_re_, tilted_im_;
  std::vector<double> log_w_, w_phase_;
  std::vector<double> of_weight_, of_loss_;  // relative roundings of weight and l
  std::vector<PreciseNode> precise_nodes_;
  std::vector<double> u_, mass_, of_mass_;  // mass: the real tilted measure, for B, with its relative rounding
  double direct_error_ = 0, direct_error_per_p_ = 0;
  double excess_error_ = 0, excess_error_per_p_ = 0, excess_error_per_p2_ = 0;
  double bound_error_ = 0, widest_angle_ = 0;
  mutable std::vector<Shifted> shifts_, shifts_of_some_;  // of all nodes, and of each kStride-th
  mutable size_t last_shift_ = 0;
};

}  // namespace ghostshard::accountant
