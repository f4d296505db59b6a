#include "accountant/contour/contour_moments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "accountant/gaussian/moment_strip.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr int kLanes = 8;  // partial sums, so that roundings do not add up over all nodes

// log(1 - q + q·e^u) on the real axis, to some roundings; for bounds and for the real tilted measure. The grid has its
// own (outcomes.h): the two engines share no arithmetic.
double log_w(double q, double u) { return u > 300 ? std::log(q) + u : std::log1p(q * std::expm1(u)); }

// One node of the shifted line, in double or long double.
template <class Real>
struct Node {
  std::complex<Real> l, d, weight;
  double size_v;
};
template <class Real>
Node<Real> line_node(double rate, double noise, double shift, bool remove, Real x, Real log_h) {
  const Real q = rate;
  const Real sigma = noise;
  const Real theta = (remove ? 1 : -1) * shift / (sigma * sigma);
  const Real u = (2 * x - 1) / (2 * sigma * sigma);
  const Real cos_theta = std::cos(theta);
  const Real sin_theta = std::sin(theta);
  Node<Real> node;
  if (u > 300) {
    node.l = {std::log(q) + u, theta};
    node.d = node.l - q * std::exp(std::min(u, Real(700))) * std::complex<Real>(cos_theta, sin_theta);
    node.size_v = 1e300;
  } else {
    const Real half_sin = std::sin(theta / 2);
    const Real growth = std::exp(u);
    const std::complex<Real> v =
        q * std::complex<Real>(std::expm1(u) * cos_theta - 2 * half_sin * half_sin, growth * sin_theta);
    node.size_v = static_cast<double>(std::abs(v));
    if (node.size_v < 0.2) {  // log(1+v) - v by its series
      std::complex<Real> sum = 0;
      for (int k = sizeof(Real) > 8 ? 32 : 24; k >= 2; --k) sum = v * (Real((k % 2) != 0 ? 1 : -1) / k + sum);
      node.d = v * sum;
      node.l = v + node.d;
    } else {
      node.l = std::log(std::complex<Real>((1 - q) + q * growth * cos_theta, q * growth * sin_theta));
      node.d = node.l - v;
    }
  }
  const Real z = x / sigma;
  const Real phase = -z * (remove ? shift : -shift) / sigma;
  node.weight = std::exp(log_h - z * z / 2) * std::complex<Real>(std::cos(phase), std::sin(phase));
  return node;
}

struct Mesh {
  double half, precision, h, low, high;
  int64_t nodes;
};
Mesh mesh_of(Direction direction, const ComposedRelease& composed, double c, bool precise) {
  const auto [q, sigma] = composed.release;
  Mesh mesh;
  mesh.precision = kPrecision + (precise ? 10 : 0) + std::log(std::max(1.0, composed.count));
  mesh.half = best_strip(direction, sigma, c, true, mesh.precision);
  mesh.h = mesh_step(direction, sigma, c, mesh.half, mesh.half, mesh.precision);
  const auto [low, high] = outcomes_that_count(direction, q, sigma, c);
  mesh.low = low;
  mesh.high = high;
  mesh.nodes = static_cast<int64_t>((high - low) / mesh.h) + 2;
  return mesh;
}

}  // namespace

int64_t LineMoment::nodes_needed(Direction direction, const ComposedRelease& composed, double c) {
  return composed.release.q == 1 ? 0 : mesh_of(direction, composed, c, false).nodes;
}

LineMoment::LineMoment(Direction direction, const ComposedRelease& composed, double c, double log_m, bool precise)
    : direction_(direction),
      q_(composed.release.q),
      sigma_(composed.release.sigma),
      count_(composed.count),
      c_(c),
      log_m_(log_m) {
  if (q_ == 1) {
    exact_ = true;
    return;
  }
  const bool remove = direction == Direction::kRemove;
  const auto [half, precision, h, low, high, nodes] = mesh_of(direction, composed, c, precise);
  const double p0 = remove ? 1 + c : -c;
  const double shift = half;
  const double lift = shift * shift / (2 * sigma_ * sigma_);
  const double log_h = std::log(h / (sigma_ * kSqrtTwoPi)) + lift;
  const double spread = direction == Direction::kAdd ? -c * std::log(std::cos(shift / (2 * sigma_ * sigma_))) : 0;
  use_excess_ = log_m < 1.5;
  const double unit = precise ? static_cast<double>(std::numeric_limits<long double>::epsilon()) : kRounding;

  double dropped_power = 0;
  double dropped_one = 0;
  double dropped_v = 0;
  double sum_tilted = 0;
  double sum_squares = 0;
  double sum_d = 0;
  for (int64_t i = 0; i < nodes; ++i) {
    const double x = low + h * static_cast<double>(i);
    const double z = x / sigma_;
    const double log_weight = log_h - z * z / 2;
    const double u = (2 * x - 1) / (2 * sigma_ * sigma_);
    // Cheap upper bounds decide first.
    const double real_l = log_w(q_, u);
    const double log_power = log_weight + p0 * real_l + spread - log_m;
    const double log_v = log_weight + (u > 0 ? std::log(q_) + u : 0.0);
    if (log_power < -kNegligible && log_v < -kNegligible) {
      dropped_power += std::exp(log_power);
      dropped_one += std::exp(log_weight);
      dropped_v += 2 * std::exp(log_v);
      continue;
    }
    const Node<double> node = line_node<double>(q_, sigma_, shift, remove, x, log_h);
    const Complex l = node.l;
    const Complex d = node.d;
    const Complex weight = node.weight;
    const double phase = -z * (remove ? shift : -shift) / sigma_;
    const double tilted = std::exp(log_weight + p0 * l.real() - log_m);
    const double tilted_phase = phase + p0 * l.imag();
    l_re_.push_back(l.real());
    l_im_.push_back(l.imag());
    d_re_.push_back(d.real());
    d_im_.push_back(d.imag());
    w_re_.push_back(weight.real());
    w_im_.push_back(weight.imag());
    if (precise) {
      const long double exact_x =
          static_cast<long double>(low) + static_cast<long double>(h) * static_cast<long double>(i);
      const long double exact_log_h =
          std::log(static_cast<long double>(h) / sigma_) - 0.918938533204672741780329736405617640L +
          static_cast<long double>(shift) * shift / (2 * static_cast<long double>(sigma_) * sigma_);
      const Node<long double> exact = line_node<long double>(q_, sigma_, shift, remove, exact_x, exact_log_h);
      precise_nodes_.push_back({exact.l, exact.d, exact.weight});
    }
    tilted_re_.push_back(tilted * std::cos(tilted_phase));
    tilted_im_.push_back(tilted * std::sin(tilted_phase));
    log_w_.push_back(log_weight);
    w_phase_.push_back(phase);
    u_.push_back(u);
    mass_.push_back(std::exp(log_weight - lift + p0 * real_l - log_m));

    // Roundings: of the weight by the size of its exponent, of l by that of u.
    const double of_weight = unit * (6 + z * z / 2 + std::abs(phase) + std::abs(log_h));
    const double of_loss = unit * (6 + 2 * std::abs(u));
    of_weight_.push_back(of_weight);
    of_loss_.push_back(of_loss);
    const double size = std::abs(l);
    const double power = p0 * l.real();
    // The direct form is in double whatever `precise` says.
    const double in_double = kRounding / unit;
    direct_error_ += tilted * (in_double * of_weight +
                               kRounding * (2 + std::abs(p0 * l.real()) + std::abs(tilted_phase) + std::abs(log_m)) +
                               in_double * std::abs(p0) * size * of_loss);
    direct_error_per_p_ += tilted * size * (in_double * of_loss + 2 * kRounding);
    const double squares = std::exp(log_weight + std::max(0.0, power)) * size * size;
    excess_error_per_p2_ += squares * (of_weight + 1.5 * of_loss + 12 * unit);
    const double weight_d = std::exp(log_weight + std::log(std::abs(d) + 1e-300));
    const double weight_v = std::exp(log_weight + std::log(std::abs(d - l) + 1e-300));
    excess_error_per_p_ += weight_d * (of_weight + 2 * of_loss) + (node.size_v < 0.2 ? 0 : 2 * unit * weight_v);
    sum_tilted += tilted;
    sum_squares += squares;
    sum_d += weight_d;
  }
  // Adding n terms in eight lanes: at most n/8 + 8 roundings of the sum of moduli.
  const double adding = unit / 2 * (static_cast<double>(l_re_.size()) / kLanes + kLanes);
  direct_error_ += adding * kRounding / unit * sum_tilted;
  excess_error_per_p2_ += adding * sum_squares;
  excess_error_per_p_ += adding * sum_d;
  sum_tilted_ = sum_tilted;
  widest_shift_ = shift;

  // Beyond the nodes: at most the integrand at the end times sigma/kTail, on both sides.
  for (const double x : {low, high}) {
    const double u = (2 * x - 1) / (2 * sigma_ * sigma_);
    const double real_l = log_w(q_, u);
    const double log_end = -x * x / (2 * sigma_ * sigma_) + lift - std::log(kTail * kSqrtTwoPi);
    const double power = !remove && x == low ? largest_lift(q_, c) : p0 * real_l;
    dropped_power += std::exp(log_end + power + spread - log_m);
    dropped_one += std::exp(log_end);
    dropped_v += 2 * std::exp(log_end + (u > 0 ? std::log(q_) + u : 0.0));
  }
  // The rule itself: e^-precision, to the left of the exponent that chose h. Twice for the rounding of the bound.
  const double rule = 4 * std::exp(-precision);
  direct_error_ += dropped_power + rule;
  bound_error_ = dropped_power + rule;
  const double m = std::exp(std::min(log_m, 1.5));
  excess_error_ += dropped_power * m + dropped_one + rule * (m + 1);
  excess_error_per_p_ += dropped_v + rule * 2 * q_;
}

LineMoment::Value LineMoment::finish(Complex m, double error) const {
  const double modulus = std::abs(m);
  if (!(count_ * error < 0.01 * modulus)) return {count_ * std::log(std::clamp(modulus + error, 1e-300, 1.0)), 2};
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
  const auto modulus = static_cast<double>(std::exp(log_modulus));
  if (!(count_ * error < 0.01 * modulus)) {
    const double scale = std::exp(-log_m_);
    return finish(Complex(static_cast<double>(1 + re), static_cast<double>(im)) * scale, (error + kRounding) * scale);
  }
  const std::complex<long double> log_power(count_ * (log_modulus - log_m_), count_ * std::atan2(im, 1 + re));
  const auto size = static_cast<double>(std::abs(log_power.real()) + std::abs(log_power.imag()));
  return {log_power, 1.01 * count_ * error / modulus + 4 * unit * (1 + size)};
}
template LineMoment::Value LineMoment::finish_excess<double>(double, double, double) const;
template LineMoment::Value LineMoment::finish_excess<long double>(long double, long double, double) const;

bool LineMoment::in_excess_form(double t) const {
  return use_excess_ && q_ * std::hypot(direction_ == Direction::kRemove ? 1 + c_ : c_, t) < 1;
}

template <class Real>
LineMoment::Value LineMoment::at(Real t) const {
  const bool remove = direction_ == Direction::kRemove;
  const auto rough_t = static_cast<double>(t);
  const auto unit = static_cast<double>(std::numeric_limits<Real>::epsilon());
  if (exact_) {  // log M(z) = z(z+1)/(2 sigma²)
    const Real scale = count_ / (2 * static_cast<Real>(sigma_) * sigma_);
    const std::complex<long double> log_power(-scale * t * t, scale * (1 + 2 * c_) * t);
    return {log_power, 8 * unit * (1 + static_cast<double>(std::abs(log_power)))};
  }
  const size_t n = l_re_.size();
  std::array<Real, kLanes> lanes_re{};
  std::array<Real, kLanes> lanes_im{};
  if (!in_excess_form(rough_t)) {
    const Real pi = remove ? t : -t;
    for (size_t j = 0; j < n; ++j) {
      const Real damping = std::exp(-pi * l_im_[j]);  // p0·l is in the tilted weight already
      const Real angle = pi * l_re_[j];
      const Real cr = damping * std::cos(angle);
      const Real ci = damping * std::sin(angle);
      lanes_re[j % kLanes] += tilted_re_[j] * cr - tilted_im_[j] * ci;
      lanes_im[j % kLanes] += tilted_re_[j] * ci + tilted_im_[j] * cr;
    }
    const Complex sum(static_cast<double>(std::accumulate(lanes_re.begin(), lanes_re.end(), Real(0))),
                      static_cast<double>(std::accumulate(lanes_im.begin(), lanes_im.end(), Real(0))));
    return finish(sum, direct_error_ + rough_t * direct_error_per_p_);
  }
  const Real pr = remove ? 1 + Real(c_) : -Real(c_);
  const Real pi = remove ? t : -t;
  constexpr int kTerms = sizeof(Real) > 8 ? 18 : 14;
  for (size_t j = 0; j < n; ++j) {
    const auto [lr, li, dr, di, wr, wi] = node_as<Real>(j);
    const Real yr = pr * lr - pi * li;
    const Real yi = pr * li + pi * lr;
    if (sizeof(Real) == 8 && pr * lr > kHeavy) {  // the power may be too large where the weight is too small
      const std::complex<Real> power = std::polar<Real>(std::exp(log_w_[j] + yr), w_phase_[j] + yi);
      const std::complex<Real> one = std::polar<Real>(std::exp(log_w_[j]), w_phase_[j]);
      const std::complex<Real> w = std::polar<Real>(std::exp(log_w_[j] + lr), w_phase_[j] + li);
      const std::complex<Real> term = power - one - std::complex<Real>(pr, pi) * (w - one);
      lanes_re[j % kLanes] += term.real();
      lanes_im[j % kLanes] += term.imag();
      continue;
    }
    Real er;
    Real ei;
    if (yr * yr + yi * yi < Real(0.25)) {  // e2 by its series
      Real sr = 1;
      Real si = 0;
      for (int k = kTerms; k >= 3; --k) {
        const Real inverse = Real(1) / k;
        const Real ar = (sr * yr - si * yi) * inverse;
        si = (sr * yi + si * yr) * inverse;
        sr = 1 + ar;
      }
      const Real hr = (yr * yr - yi * yi) / 2;
      const Real hi = yr * yi;
      er = hr * sr - hi * si;
      ei = hr * si + hi * sr;
    } else {
      const Real growth = std::exp(yr);
      er = growth * std::cos(yi) - 1 - yr;
      ei = growth * std::sin(yi) - yi;
    }
    er += pr * dr - pi * di;
    ei += pr * di + pi * dr;
    lanes_re[j % kLanes] += wr * er - wi * ei;
    lanes_im[j % kLanes] += wr * ei + wi * er;
  }
  const Real sum_re = std::accumulate(lanes_re.begin(), lanes_re.end(), Real(0));
  const Real sum_im = std::accumulate(lanes_im.begin(), lanes_im.end(), Real(0));
  const double p = std::hypot(static_cast<double>(pr), rough_t);
  const double error = excess_error_ + p * excess_error_per_p_ + p * p * excess_error_per_p2_;
  return finish_excess<Real>(sum_re, sum_im, error);
}

template LineMoment::Value LineMoment::at<double>(double) const;
template LineMoment::Value LineMoment::at<long double>(long double) const;

}  // namespace ghostshard::accountant
