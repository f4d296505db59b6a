// The nodes of a moment's trapezoid rule (contour_moments.h), and the errors by roundings and left-out nodes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "accountant/contour/contour_moments.h"
#include "accountant/gaussian/moment_strip.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();

// log(1 - q + q·e^u) on the real axis, for bounds and for the real tilted measure. The grid has its own (outcomes.h):
// the two engines share no arithmetic. Below -1/2, where q is above 1/2 and 1 - q therefore exact, the sum of two
// positive numbers keeps the digits that 1 + v loses as q goes to 1. As in real_moment.cpp it errs by (12 + 5|u|)/2
// roundings of itself.
double log_w(double q, double u) {
  if (u > 300) return std::log(q) + u;
  const double v = q * std::expm1(u);
  return v < -0.5 ? std::log((1 - q) + q * std::exp(u)) : std::log1p(v);
}

// One node of the shifted line, in double or long double. weighted_d: weight·d, which may be far from 0 where the
// weight is too small for a number and v too large.
template <class Real>
struct Node {
  std::complex<Real> l, weighted_d, weight;
  double size_v, log_size_v, log_size_d;
};
// What all nodes of a line have in common.
template <class Real>
struct Line {
  Line(double rate, double noise, double away, bool remove, Real log_step)
      : q(rate),
        sigma(noise),
        shift(remove ? away : -away),
        theta(shift / (sigma * sigma)),
        cos_theta(std::cos(theta)),
        sin_theta(std::sin(theta)),
        half_sin(std::sin(theta / 2)),
        log_h(log_step) {}
  Real q, sigma;
  double shift;
  Real theta, cos_theta, sin_theta, half_sin, log_h;
};
template <class Real>
Node<Real> line_node(const Line<Real>& line, Real x) {
  const auto& [q, sigma, shift, theta, cos_theta, sin_theta, half_sin, log_h] = line;
  const Real u = (2 * x - 1) / (2 * sigma * sigma);
  const Real z = x / sigma;
  const Real phase = -z * shift / sigma;
  const Real log_weight = log_h - z * z / 2;
  Node<Real> node;
  node.weight = std::polar(std::exp(log_weight), phase);
  if (u > 300) {
    const Real log_v = std::log(q) + u;
    node.l = {log_v, theta};
    node.weighted_d = node.weight * node.l - std::polar(std::exp(log_weight + log_v), phase + theta);
    node.size_v = 1e300;
    node.log_size_v = static_cast<double>(log_v);
    node.log_size_d = std::max(node.log_size_v, std::log(static_cast<double>(std::abs(node.l)))) + 1;
    return node;
  }
  const Real growth = std::exp(u);
  const std::complex<Real> v =
      q * std::complex<Real>(std::expm1(u) * cos_theta - 2 * half_sin * half_sin, growth * sin_theta);
  node.size_v = static_cast<double>(std::abs(v));
  std::complex<Real> d;
  if (node.size_v < 0.2) {  // log(1+v) - v by its series
    std::complex<Real> sum = 0;
    for (int k = sizeof(Real) > 8 ? 32 : 24; k >= 2; --k) sum = v * (Real((k % 2) != 0 ? 1 : -1) / k + sum);
    d = v * sum;
    node.l = v + d;
  } else {
    node.l = std::log(std::complex<Real>((1 - q) + q * growth * cos_theta, q * growth * sin_theta));
    d = node.l - v;
  }
  node.weighted_d = node.weight * d;
  node.log_size_v = std::log(node.size_v + 1e-300);
  node.log_size_d = std::log(static_cast<double>(std::abs(d)) + 1e-300);
  return node;
}

// Node i is (first + i)·h, exactly.
struct Mesh {
  double half, precision, h, first;
  int64_t nodes;
};
Mesh mesh_of(Direction direction, const ComposedRelease& composed, double c, bool precise) {
  const auto [q, sigma] = composed.release;
  Mesh mesh;
  mesh.precision = kPrecision + (precise ? 10 : 0) + std::log(std::max(1.0, composed.count));
  mesh.half = best_strip(direction, sigma, c, true, mesh.precision);
  mesh.h = exact_step(mesh_step(direction, sigma, c, mesh.half, mesh.half, mesh.precision));
  const auto [low, high] = outcomes_that_count(direction, q, sigma, c);
  mesh.first = std::floor(low / mesh.h);
  mesh.nodes = static_cast<int64_t>(std::floor(high / mesh.h) - mesh.first) + 2;
  return mesh;
}

}  // namespace

int64_t LineMoment::nodes_needed(Direction direction, const ComposedRelease& composed, double c) {
  return composed.release.q == 1 ? 0 : mesh_of(direction, composed, c, false).nodes;
}

// What all nodes have in common.
struct LineMoment::Frame {
  Line<double> line;
  std::optional<Line<long double>> precise_line;
  bool remove, precise;
  double first, h;
  double p0, shift, lift, log_h, spread;
  double unit;  // of roundings
};

// Sums over all nodes.
struct LineMoment::Sums {
  double dropped_power = 0, dropped_one = 0, dropped_v = 0;  // of those left out
  double tilted = 0, squares = 0, d = 0;                     // of the others
};

LineMoment::LineMoment(Direction direction, const ComposedRelease& composed, double c, const RealMoment& real,
                       bool precise)
    : direction_(direction),
      q_(composed.release.q),
      sigma_(composed.release.sigma),
      count_(composed.count),
      c_(c),
      log_m_(real.log_m),
      log_m_error_(real.error) {
  if (q_ == 1) {
    exact_ = true;
    return;
  }
  const bool remove = direction == Direction::kRemove;
  const auto [shift, precision, h, first, nodes] = mesh_of(direction, composed, c, precise);
  const double lift = shift * shift / (2 * sigma_ * sigma_);
  const double log_h = std::log(h / (sigma_ * kSqrtTwoPi)) + lift;
  std::optional<Line<long double>> precise_line;
  if (precise)
    precise_line.emplace(q_, sigma_, shift, remove,
                         std::log(static_cast<long double>(h) / sigma_) - 0.918938533204672741780329736405617640L +
                             static_cast<long double>(shift) * shift / (2 * static_cast<long double>(sigma_) * sigma_));
  const Frame frame{
      .line = {q_, sigma_, shift, remove, log_h},
      .precise_line = precise_line,
      .remove = remove,
      .precise = precise,
      .first = first,
      .h = h,
      .p0 = remove ? 1 + c : -c,
      .shift = shift,
      .lift = lift,
      .log_h = log_h,
      .spread = direction == Direction::kAdd ? -c * std::log(std::cos(shift / (2 * sigma_ * sigma_))) : 0,
      .unit = precise ? static_cast<double>(std::numeric_limits<long double>::epsilon()) : kRounding,
  };
  use_excess_ = log_m_ < 1.5;
  widest_angle_ = shift / (sigma_ * sigma_);
  Sums sums;
  for (std::vector<double>* values : {&l_re_, &l_im_, &weighted_d_re_, &weighted_d_im_, &w_re_, &w_im_, &tilted_re_,
                                      &tilted_im_, &log_w_, &w_phase_, &u_, &mass_, &of_weight_, &of_loss_, &of_mass_})
    values->reserve(static_cast<size_t>(nodes));
  for (int64_t i = 0; i < nodes; ++i) add_node(frame, i, sums);
  // Adding n terms in eight lanes: at most n/8 + 8 roundings of the sum of moduli.
  const double adding = frame.unit / 2 * (static_cast<double>(l_re_.size()) / kLanes + kLanes);
  direct_error_ += adding * kRounding / frame.unit * sums.tilted;
  excess_error_per_p2_ += adding * sums.squares;
  excess_error_per_p_ += adding * sums.d;
  add_tails(frame, {first * h, (first + static_cast<double>(nodes - 1)) * h}, sums);
  // The rule itself: e^-precision, to the left of the exponent that chose h. Twice for the rounding of the bound.
  const double rule = 4 * std::exp(-precision);
  direct_error_ += sums.dropped_power + rule;
  bound_error_ = sums.dropped_power + rule;
  const double m = std::exp(std::min(log_m_, 1.5));
  excess_error_ += sums.dropped_power * m + sums.dropped_one + rule * (m + 1);
  excess_error_per_p_ += sums.dropped_v + rule * 2 * q_;
}

void LineMoment::add_node(const Frame& frame, int64_t i, Sums& sums) {
  const double x = (frame.first + static_cast<double>(i)) * frame.h;
  const double z = x / sigma_;
  const double log_weight = frame.log_h - z * z / 2;
  const double u = (2 * x - 1) / (2 * sigma_ * sigma_);
  // Cheap upper bounds decide first.
  const double real_l = log_w(q_, u);
  const double log_power = log_weight + frame.p0 * real_l + frame.spread - log_m_;
  const double log_v = log_weight + (u > 0 ? std::log(q_) + u : 0.0);
  if (log_power < -kNegligible && log_v < -kNegligible) {
    sums.dropped_power += std::exp(log_power);
    sums.dropped_one += std::exp(log_weight);
    sums.dropped_v += 2 * std::exp(log_v);
    return;
  }
  const Node<double> node = line_node(frame.line, x);
  l_re_.push_back(node.l.real());
  l_im_.push_back(node.l.imag());
  weighted_d_re_.push_back(node.weighted_d.real());
  weighted_d_im_.push_back(node.weighted_d.imag());
  w_re_.push_back(node.weight.real());
  w_im_.push_back(node.weight.imag());
  if (frame.precise) add_precise_node(frame, i);
  const double phase = -z * (frame.remove ? frame.shift : -frame.shift) / sigma_;
  const double tilted = std::exp(log_weight + frame.p0 * node.l.real() - log_m_);
  const double tilted_phase = phase + frame.p0 * node.l.imag();
  tilted_re_.push_back(tilted * std::cos(tilted_phase));
  tilted_im_.push_back(tilted * std::sin(tilted_phase));
  log_w_.push_back(log_weight);
  w_phase_.push_back(phase);
  u_.push_back(u);
  mass_.push_back(std::exp(log_weight - frame.lift + frame.p0 * real_l - log_m_));
  // Roundings: of the weight by the size of its exponents, three halves of a unit each; of l by that of u, which has
  // three halves, and v two more. |w| is at least 0.7 of the sum of its two terms, so that for larger v the
  // logarithm errs by 1.43 times that of w, 1.5(1 + |u|) units.
  of_weight_.push_back(frame.unit * (8 + z * z + 2 * std::abs(phase) + 2 * std::abs(frame.log_h)));
  of_loss_.push_back(frame.unit *
                     (node.size_v < 0.2 ? 8 + 4 * std::abs(u) : 4 + (3 + 2.5 * std::abs(u)) / std::abs(node.l)));
  of_mass_.push_back(kRounding * (10 + z * z + 2 * std::abs(frame.log_h) + 2 * frame.lift + std::abs(log_m_) +
                                  std::abs(frame.p0 * real_l) * (8 + 3 * std::min(std::abs(u), 40.0))));
  add_roundings(frame, node.log_size_d, node.log_size_v, tilted, tilted_phase, sums);
}

void LineMoment::add_precise_node(const Frame& frame, int64_t i) {
  const long double x = (frame.first + static_cast<double>(i)) * frame.h;  // exact
  const Node<long double> node = line_node(*frame.precise_line, x);
  precise_nodes_.push_back({node.l, node.weighted_d, node.weight});
}

void LineMoment::add_roundings(const Frame& frame, double log_size_d, double log_size_v, double tilted,
                               double tilted_phase, Sums& sums) {
  const Complex l(l_re_.back(), l_im_.back());
  const double log_weight = log_w_.back();
  const double of_weight = of_weight_.back();
  const double of_loss = of_loss_.back();
  const double size = std::abs(l);
  const double power = frame.p0 * l.real();
  // The direct form is in double whatever `precise` says.
  const double in_double = kRounding / frame.unit;
  direct_error_ +=
      tilted * (in_double * of_weight + kRounding * (2 + std::abs(power) + std::abs(tilted_phase) + std::abs(log_m_)) +
                in_double * std::abs(frame.p0) * size * of_loss);
  direct_error_per_p_ += tilted * size * (in_double * of_loss + 2 * kRounding);
  const double squares = std::exp(log_weight + std::max(0.0, power)) * size * size;
  excess_error_per_p2_ += squares * (of_weight + 1.5 * of_loss + 12 * frame.unit);
  // Where v is large, so are the exponents: u and log q.
  const double weight_d = std::exp(log_weight + log_size_d);
  const double weight_v = std::exp(log_weight + log_size_v);
  const double of_v =
      log_size_v < std::log(0.2)
          ? 0
          : frame.unit *
                (2 + (log_size_v > 250 ? 6 * std::abs(log_size_v - std::log(q_)) + 4 * std::abs(std::log(q_)) : 0));
  excess_error_per_p_ += weight_d * (of_weight + 2 * of_loss) + of_v * weight_v;
  sums.tilted += tilted;
  sums.squares += squares;
  sums.d += weight_d;
}

// Beyond the nodes: at most the integrand at the end times sigma/kTail, on both sides.
void LineMoment::add_tails(const Frame& frame, Range nodes, Sums& sums) const {
  for (const double x : {nodes.low, nodes.high}) {
    const double u = (2 * x - 1) / (2 * sigma_ * sigma_);
    const double real_l = log_w(q_, u);
    const double log_end = -x * x / (2 * sigma_ * sigma_) + frame.lift - std::log(kTail * kSqrtTwoPi);
    // Far to the left w^-c is e^lift at most, if the mesh ends where this decides.
    const double lift = largest_lift(q_, c_);
    const bool lifted =
        !frame.remove && x == nodes.low && c_ + kTail * sigma_ > std::sqrt(kTail * kTail + 2 * lift) * sigma_;
    const double power = lifted ? lift : frame.p0 * real_l;
    sums.dropped_power += std::exp(log_end + power + frame.spread - log_m_);
    sums.dropped_one += std::exp(log_end);
    sums.dropped_v += 2 * std::exp(log_end + (u > 0 ? std::log(q_) + u : 0.0));
  }
}

}  // namespace ghostshard::accountant
