// The moment generating function M(z) = E[e^(z·loss)] of one Poisson-sampled Gaussian's privacy loss, on the real axis
// and on a vertical line, with an error bound that is proven and not estimated.
//
// With w(x) = 1 - q + q·e^u, u = (2x - 1)/(2 sigma²), x ~ N(0, sigma²), M(z) = E[w^p], p = 1 + z when a unit is
// removed and p = -z when one is added. Since E[w - 1] = 0,
//   M(z) - 1 = E[e2(p·l) + p·d],  l = log w,  d = l - (w - 1),  e2(y) = e^y - 1 - y,
// where nothing cancels: count·log M keeps its digits at count = 1e8 and q = 1e-7.
//
// Quadrature. The trapezoid rule on the line Im x = y0, y0 > 0 for z in the upper half plane (mirrored where a unit is
// added). For 0 <= Im x < pi·sigma², 0 <= arg w <= Im x/sigma²; |w(x + iy)| <= w(x) and >= w(x)·cos(y/(2 sigma²)). So
// |w^p| <= w^(1+c)·e^(-t·arg w) <= w^(1+c), *whatever t is*: on the strip of half width d <= y0 around the line the
// integrand is bounded by e^((y0+d)²/(2 sigma²)) times a real moment, and the rule's error by (Trefethen, Weideman
// 2014, SIAM Review 56(3), Thm. 5.1)
//   2·e^((y0+d)²/(2 sigma²))·(M(c)·S + 1 + 2q|p|)/(e^(2 pi d/h) - 1),   S = cos((y0+d)/(2 sigma²))^-c where added,
//   else 1.
// One mesh of some hundred points serves every t.
//
// The rest of the line. For any y, |M(c+it)| <= B_y(t) = ∫ |integrand at x + iy| dx, which falls with t since arg w >=
// 0: one real integral bounds |M| for *all* larger t. Its integrand extends from x to x + iv with a modulus that is
// bounded as above (arg w(x+iy) becomes [arg w(x+i(y+v)) + arg w(x+i(y-v))]/2 >= 0, arg being odd and rising in the
// imaginary part), so the same mesh integrates it. For q = 1 the best y gives |M| exactly.
//
// Left-out nodes are summed into the error, and so are the tails beyond the first and last node, where the integrand
// falls at least as fast as a Gaussian centred at 1 + c (remove) or -c (add), and the rounding of each term.
#pragma once

#include <array>
#include <complex>
#include <cstdint>
#include <vector>

#include "accountant/sampled_gaussian.h"

namespace ghostshard::accountant {

// `count` executions of one release.
struct ComposedRelease {
  SampledGaussian release;
  double count;
};

// On the real axis: log M and its first two derivatives, to about 1e-13 relative.
struct RealMoment {
  double log_m;
  double mean;
  double variance;
};
RealMoment real_moment(Direction direction, SampledGaussian release, double c);

// M(c + it)^count for t >= 0, relative to M(c)^count.
class LineMoment {
 public:
  // log_m: real_moment(…, c).log_m.
  // precise: nodes and sums in long double, for at<long double>: where an integral over t cancels, roundings do not.
  LineMoment(Direction direction, const ComposedRelease& composed, double c, double log_m, bool precise);

  struct Value {
    std::complex<long double> log_power;  // of the quotient; its real part is rounded up where the error is large
    double relative_error;                // |computed - true| <= relative_error·|e^log_power|
  };
  template <class Real>  // double, or where precise long double
  Value at(Real t) const;

  // at(k·step) for k = 0, …, n-1, one after the other: many times faster than one by one where t·q is large.
  template <class Real, class Visitor>  // (size_t k, const Value&)
  void sweep(Real step, size_t n, const Visitor& visit) const;

  // Upper bound of log |M(c+it')/M(c)|^count for all t' >= t.
  double log_rest(double t) const;
  size_t nodes() const { return l_re_.size(); }

 private:
  // B_y for one y: B_y(t)/M(c) - 1 = Σ mass·expm1(fixed - t·angle).
  struct Shifted {
    bool known = false;
    std::vector<double> fixed, angle;
  };
  struct PreciseNode {
    std::complex<long double> l, d, w;
  };
  template <class Real>
  std::array<Real, 6> node_as(size_t j) const {
    if constexpr (sizeof(Real) > sizeof(double)) {
      const PreciseNode& node = precise_nodes_[j];
      return {node.l.real(), node.l.imag(), node.d.real(), node.d.imag(), node.w.real(), node.w.imag()};
    } else {
      return {l_re_[j], l_im_[j], d_re_[j], d_im_[j], w_re_[j], w_im_[j]};
    }
  }
  bool in_excess_form(double t) const;
  Value finish(std::complex<double> m, double error) const;
  const Shifted& shifted(size_t index) const;
  double log_bound(size_t index, double t) const;

  Direction direction_;
  double q_, sigma_, count_, c_, log_m_;
  bool exact_ = false;       // q = 1: closed form
  bool use_excess_ = false;  // M(c) is small enough for the form M - 1
  std::vector<double> l_re_, l_im_, d_re_, d_im_, w_re_, w_im_, tilted_re_, tilted_im_;
  std::vector<double> log_w_, w_phase_;
  std::vector<PreciseNode> precise_nodes_;
  std::vector<double> u_, mass_;  // mass: the real tilted measure, for B
  double direct_error_ = 0, direct_error_per_p_ = 0, sum_tilted_ = 0;
  double excess_error_ = 0, excess_error_per_p_ = 0, excess_error_per_p2_ = 0;
  double bound_error_ = 0, widest_shift_ = 0;
  mutable std::vector<Shifted> shifts_;
  mutable size_t last_shift_ = 0;
};

// How many steps a sweep goes by multiplication before it starts afresh: each adds two roundings.
inline constexpr size_t kSweepLength = 64;

template <class Real, class Visitor>
void LineMoment::sweep(Real exact_step, size_t n, const Visitor& visit) const {
  const auto step = static_cast<double>(exact_step);
  size_t k = 0;
  while (k < n && (exact_ || in_excess_form(step * static_cast<double>(k)))) {
    visit(k, at<Real>(exact_step * static_cast<Real>(k)));
    ++k;
  }
  const size_t size = l_re_.size();
  std::vector<double> re(size), im(size), turn_re(size), turn_im(size);
  const double sign = direction_ == Direction::kRemove ? 1 : -1;
  for (size_t j = 0; j < size; ++j) {
    const std::complex<double> turn = std::exp(std::complex<double>(-l_im_[j], l_re_[j]) * (sign * step));
    turn_re[j] = turn.real();
    turn_im[j] = turn.imag();
  }
  for (size_t since = 0; k < n; ++k, ++since) {
    const double t = step * static_cast<double>(k);
    if (since % kSweepLength == 0) {
      for (size_t j = 0; j < size; ++j) {
        const double damping = std::exp(-sign * t * l_im_[j]);
        const double angle = sign * t * l_re_[j];
        const std::complex<double> now =
            std::complex<double>(tilted_re_[j], tilted_im_[j]) * std::polar(damping, angle);
        re[j] = now.real();
        im[j] = now.imag();
      }
    }
    double lanes_re[8] = {};
    double lanes_im[8] = {};
    const size_t whole = size / 8 * 8;
    for (size_t j = 0; j < whole; j += 8)
      for (size_t lane = 0; lane < 8; ++lane) {
        const double a = re[j + lane];
        const double b = im[j + lane];
        lanes_re[lane] += a;
        lanes_im[lane] += b;
        re[j + lane] = a * turn_re[j + lane] - b * turn_im[j + lane];
        im[j + lane] = a * turn_im[j + lane] + b * turn_re[j + lane];
      }
    for (size_t j = whole; j < size; ++j) {
      lanes_re[j - whole] += re[j];
      lanes_im[j - whole] += im[j];
      const double a = re[j] * turn_re[j] - im[j] * turn_im[j];
      im[j] = re[j] * turn_im[j] + im[j] * turn_re[j];
      re[j] = a;
    }
    std::complex<double> sum = 0;
    for (int lane = 0; lane < 8; ++lane) sum += std::complex<double>(lanes_re[lane], lanes_im[lane]);
    visit(k, finish(sum, direct_error_ + t * direct_error_per_p_ + 4.5e-16 * kSweepLength * sum_tilted_));
  }
}

}  // namespace ghostshard::accountant
