// Terms that turn from one node of a line to the next, and their sums: the work of a sweep (contour_sweep.cpp).
#pragma once

#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <limits>
#include <vector>

#include "accountant/contour/turn_lanes.h"

namespace ghostshard::accountant {

template <class Real>
inline constexpr double kUnit = static_cast<double>(std::numeric_limits<Real>::epsilon());

// e^(x + iy), x <= 0, where x and y are products and `of_x` and `of_y` what their roundings left of them.
inline std::complex<double> exp_of_products(double x, double of_x, double y, double of_y) {
  const double growth = std::exp(x) * (1 + of_x);
  const double cosine = std::cos(y);
  const double sine = std::sin(y);
  return {growth * (cosine - sine * of_y), growth * (sine + cosine * of_y)};
}

// Some z_j(t) = z_j(t_0)·e^((t - t_0)·l_j), and their sums at equidistant t. The steps from t_0 on are taken by
// multiplication with e^(step·l_j), e^(4·step·l_j), e^(16·step·l_j), …, each at most three times.
template <class Real>
class Turning {
 public:
  static constexpr size_t kMostLevels = 4;
  using Factors = std::array<std::complex<Real>, kMostLevels>;

  explicit Turning(size_t nodes) : levels_(nodes < 1000 ? 3 : 4) {}
  // Steps before all are to be taken afresh.
  size_t steps() const { return size_t{1} << (2 * levels_); }
  Factors factors(Real step, std::complex<Real> l) const {
    Factors factors{};
    for (size_t level = 0; level < levels_; ++level) {
      const Real many = step * static_cast<Real>(size_t{1} << (2 * level));  // exact
      const Real x = many * l.real();
      const Real y = many * l.imag();
      if constexpr (sizeof(Real) == sizeof(double))
        factors[level] = exp_of_products(x, std::fma(many, l.real(), -x), y, std::fma(many, l.imag(), -y));
      else
        factors[level] = std::exp(std::complex<Real>(x, y));
    }
    return factors;
  }
  // A bound on the relative rounding of all steps. A complex product's is at most sqrt(2) units (Higham 2002, Lemma
  // 3.5), a factor's three and a half: those of an exponential, of a sine and a cosine, and of three products. What the
  // exponents' products leave out is below half a unit of them: exp_of_products misses its square, long double all of
  // it, and |many·l| adds up over the steps.
  double rounding(double step, double l) const {
    const double all = step * l * static_cast<double>(steps());
    const double of_exponents = sizeof(Real) == sizeof(double) ? all * all * kUnit<double> : 2 * all;
    return kUnit<Real> * (5 * 3 * static_cast<double>(levels_) + of_exponents);
  }

  void clear() {
    for (Part& part : z_) part.clear();
    for (size_t level = 0; level < levels_; ++level) factors_[level].clear();
    since_ = 0;
  }
  void add(std::complex<Real> now, const Factors& factors) {
    z_[levels_ - 2].push_back(now);
    for (size_t level = 0; level < levels_; ++level) factors_[level].push_back(factors[level]);
  }
  // After the last add().
  void begin() {
    while (z_[levels_ - 2].re.size() % kTurnLanes != 0) add(0, Factors{});
  }
  // The sums at this t and at the next kTurnsAtOnce - 1; then so many steps.
  void sums_and_turn(TurnSums<Real>& sums) {
    // z_[0] is turned node by node, z_[1] stands at every 16th and z_[2] at every 64th, each one ahead.
    if (levels_ > 3 && since_ % 64 == 0) copy_and_leap(2);
    if (since_ % 16 == 0) copy_and_leap(1);
    const Part& turn = factors_[0];
    const Part& leap = factors_[1];
    turn_lanes({z_[0].re.data(), z_[0].im.data(), turn.re.data(), turn.im.data(), leap.re.data(), leap.im.data(),
                z_[0].re.size()},
               sums);
    since_ += kTurnsAtOnce;
  }
  // Roundings of these sums, of the sum of moduli.
  double adding() const {
    return kUnit<Real> / 2 * (static_cast<double>(z_[levels_ - 2].re.size()) / kTurnLanes + kTurnLanes);
  }

 private:
  struct Part {
    std::vector<Real> re, im;
    void clear() {
      re.clear();
      im.clear();
    }
    void push_back(std::complex<Real> z) {
      re.push_back(z.real());
      im.push_back(z.imag());
    }
  };
  void copy_and_leap(size_t from) {
    z_[from - 1] = z_[from];
    Part& part = z_[from];
    const Part& factor = factors_[from + 1];
    for (size_t j = 0; j < part.re.size(); ++j) times(part.re[j], part.im[j], factor.re[j], factor.im[j]);
  }

  size_t levels_;
  size_t since_ = 0;
  std::array<Part, kMostLevels - 1> z_;
  std::array<Part, kMostLevels> factors_;
};

}  // namespace ghostshard::accountant
