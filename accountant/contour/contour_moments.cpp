#include "accountant/contour/contour_moments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();

}  // namespace

long double LineMoment::log_scale() const {
  if (!exact_) return static_cast<long double>(count_) * log_m_;
  return static_cast<long double>(count_) * c_ * (1 + static_cast<long double>(c_)) /
         (2 * static_cast<long double>(sigma_) * sigma_);
}

LineMoment::Value LineMoment::finish(Complex m, double error) const {
  const double modulus = std::sqrt(m.real() * m.real() + m.imag() * m.imag());  // error exceeds what underflows
  error += 4 * kRounding * modulus;  // of the modulus, and of an angle that is small beside it
  // |M| <= M(c), by which values are divided but for its error.
  if (!(std::max(1.0, count_) * error < 0.01 * modulus))
    return {count_ * (std::log(std::clamp(modulus + error, 1e-300, 1.0)) + 1.01 * log_m_error_), 2.01};
  const Complex log_power(count_ * std::log(modulus), count_ * std::atan2(m.imag(), m.real()));
  const double size = std::abs(log_power.real()) + std::abs(log_power.imag());
  return {log_power, 1.01 * count_ * error / modulus + 4 * kRounding * (1 + size)};
}

template <class Real>
LineMoment::Value LineMoment::finish_excess(Real re, Real im, double error) const {
  const auto unit = static_cast<double>(std::numeric_limits<Real>::epsilon());
  // log(1+S) with S small: the modulus by log1p, so that a real part of 1e-12 keeps its digits.
  const Real norm = 2 * re + re * re + im * im;
  const Real log_modulus = norm > -1 ? std::log1p(norm) / 2 : Real(-750);
  const double modulus = norm > -1 ? std::sqrt(1 + static_cast<double>(norm)) : 0;
  if (!(std::max(1.0, count_) * error < 0.01 * modulus)) {
    const double scale = std::exp(-log_m_);
    return finish(Complex(static_cast<double>(1 + re), static_cast<double>(im)) * scale, (error + kRounding) * scale);
  }
  const std::complex<long double> log_power(count_ * (log_modulus - log_m_), count_ * std::atan2(im, 1 + re));
  const auto size = static_cast<double>(std::abs(log_power.real()) + std::abs(log_power.imag()));
  // The logarithm of the modulus and log_m cancel where t is small.
  const double cancelled = count_ * (std::abs(static_cast<double>(log_modulus)) + std::abs(log_m_));
  return {log_power, 1.01 * count_ * error / modulus + 4 * unit * (1 + size + cancelled)};
}
template LineMoment::Value LineMoment::finish_excess<double>(double, double, double) const;
template LineMoment::Value LineMoment::finish_excess<long double>(long double, long double, double) const;

bool LineMoment::in_excess_form(double t) const {
  return use_excess_ && q_ * std::hypot(direction_ == Direction::kRemove ? 1 + c_ : c_, t) < 1;
}

namespace {

// A sum in lanes.
template <class Real>
class Lanes {
 public:
  void add(size_t j, Real re, Real im) {
    re_[j % kLanes] += re;
    im_[j % kLanes] += im;
  }
  Real re() const { return std::accumulate(re_.begin(), re_.end(), Real(0)); }
  Real im() const { return std::accumulate(im_.begin(), im_.end(), Real(0)); }

 private:
  std::array<Real, kLanes> re_{};
  std::array<Real, kLanes> im_{};
};

// e2(y) = e^y - 1 - y.
template <class Real>
std::complex<Real> e2(Real yr, Real yi) {
  constexpr int kTerms = sizeof(Real) > 8 ? 18 : 14;
  if (!(yr * yr + yi * yi < Real(0.25))) {
    const Real growth = std::exp(yr);
    return {growth * std::cos(yi) - 1 - yr, growth * std::sin(yi) - yi};
  }
  Real sr = 1;  // by its series
  Real si = 0;
  for (int k = kTerms; k >= 3; --k) {
    const Real inverse = Real(1) / k;
    const Real ar = (sr * yr - si * yi) * inverse;
    si = (sr * yi + si * yr) * inverse;
    sr = 1 + ar;
  }
  const Real hr = (yr * yr - yi * yi) / 2;
  const Real hi = yr * yi;
  return {hr * sr - hi * si, hr * si + hi * sr};
}

}  // namespace

template <class Real>
LineMoment::Value LineMoment::at(Real t) const {
  if (exact_) {  // log M(z) = z(z+1)/(2 sigma²)
    const auto unit = static_cast<double>(std::numeric_limits<Real>::epsilon());
    const Real scale = count_ / (2 * static_cast<Real>(sigma_) * sigma_);
    const std::complex<long double> log_power(-scale * t * t, scale * (1 + 2 * c_) * t);
    return {log_power, 8 * unit * static_cast<double>(std::abs(log_power))};
  }
  return in_excess_form(static_cast<double>(t)) ? excess_at<Real>(t) : direct_at<Real>(t);
}

template <class Real>
LineMoment::Value LineMoment::direct_at(Real t) const {
  const Real pi = direction_ == Direction::kRemove ? t : -t;
  Lanes<Real> sum;
  for (size_t j = 0; j < l_re_.size(); ++j) {
    const Real damping = std::exp(-pi * l_im_[j]);  // p0·l is in the tilted weight already
    const Real angle = pi * l_re_[j];
    const Real cr = damping * std::cos(angle);
    const Real ci = damping * std::sin(angle);
    sum.add(j, tilted_re_[j] * cr - tilted_im_[j] * ci, tilted_re_[j] * ci + tilted_im_[j] * cr);
  }
  return finish(Complex(static_cast<double>(sum.re()), static_cast<double>(sum.im())),
                direct_error_ + static_cast<double>(t) * direct_error_per_p_);
}

template <class Real>
LineMoment::Value LineMoment::excess_at(Real t) const {
  const bool remove = direction_ == Direction::kRemove;
  const Real pr = remove ? 1 + Real(c_) : -Real(c_);
  const Real pi = remove ? t : -t;
  Lanes<Real> sum;
  for (size_t j = 0; j < l_re_.size(); ++j) {
    const auto [lr, li, dr, di, wr, wi] = node_as<Real>(j);
    const Real yr = pr * lr - pi * li;
    const Real yi = pr * li + pi * lr;
    if (sizeof(Real) == 8 && pr * lr > kHeavy) {  // the power may be too large, and the weight too small
      const std::complex<Real> power = std::polar<Real>(std::exp(log_w_[j] + yr), w_phase_[j] + yi);
      const std::complex<Real> one = std::polar<Real>(std::exp(log_w_[j]), w_phase_[j]);
      const std::complex<Real> w = std::polar<Real>(std::exp(log_w_[j] + lr), w_phase_[j] + li);
      const std::complex<Real> term = power - one - std::complex<Real>(pr, pi) * (w - one);
      sum.add(j, term.real(), term.imag());
      continue;
    }
    const std::complex<Real> excess = e2(yr, yi);
    sum.add(j, wr * excess.real() - wi * excess.imag() + (pr * dr - pi * di),
            wr * excess.imag() + wi * excess.real() + (pr * di + pi * dr));
  }
  const double p = std::hypot(static_cast<double>(pr), static_cast<double>(t));
  const double error = excess_error_ + p * excess_error_per_p_ + p * p * excess_error_per_p2_;
  return finish_excess<Real>(sum.re(), sum.im(), error);
}

template LineMoment::Value LineMoment::at<double>(double) const;
template LineMoment::Value LineMoment::at<long double>(long double) const;

}  // namespace ghostshard::accountant
