// An upper bound of |M(c + it')| for all t' >= t: "the rest of the line" of contour_moments.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "accountant/contour/contour_moments.h"
#include "accountant/contour/least_near.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kShiftRatio = 1.4;
constexpr size_t kStride = 8;
constexpr size_t kFewNodes = 128;
constexpr double kLeastLeft = 1e-12;  // of a sum that all but cancels

// log1p(x), |x| <= 0.49, and atan2(y, x), x > 0: most arguments are small, where some terms of the series do. What is
// left out is below x^8/9 <= 2e-17 of the sum, or r^10/11 <= 1e-18; Horner's rule adds three units of it.
double short_log1p(double x) {
  if (std::abs(x) > 0.01) return std::log1p(x);
  return x * (1 - x * (1.0 / 2 -
                       x * (1.0 / 3 - x * (1.0 / 4 - x * (1.0 / 5 - x * (1.0 / 6 - x * (1.0 / 7 - x * (1.0 / 8))))))));
}
double short_atan2(double y, double x) {
  if (!(std::abs(y) < 0.02 * x)) return std::atan2(y, x);
  const double r = y / x;
  const double square = r * r;
  return r * (1 - square * (1.0 / 3 - square * (1.0 / 5 - square * (1.0 / 7 - square * (1.0 / 9)))));
}

}  // namespace

double LineMoment::angle_of(size_t index) const {
  return widest_angle_ * std::pow(kShiftRatio, -static_cast<double>(index));
}

void LineMoment::limit_angle(double widest) {
  widest_angle_ = std::min(widest_angle_, widest);
  shifts_.clear();
  shifts_of_some_.clear();
}

LineMoment::Shifted LineMoment::shifted_at(size_t index, size_t stride) const {
  Shifted shifted;
  const double theta = angle_of(index);
  const double lift = theta * theta * sigma_ * sigma_ / 2;
  const double half_sin = std::sin(theta / 2);
  const double sine = std::sin(theta);
  const double cosine = std::cos(theta);
  const double p0 = direction_ == Direction::kRemove ? 1 + c_ : -c_;
  const size_t size = (u_.size() + stride - 1) / stride;
  for (std::vector<double>* values : {&shifted.fixed, &shifted.angle, &shifted.size, &shifted.rounding})
    values->reserve(size);
  for (size_t j = 0; j < u_.size(); j += stride) {
    const double u = u_[j];
    const double odds = q_ * std::exp(std::min(u, 600.0));  // against 1 - q
    const double w = (1 - q_) + odds;
    // |w(x+iy)|² = w² - 4(1-q)·odds·sin²(theta/2)
    const double shrinks = 0.5 * short_log1p(-4 * ((1 - q_) / w) * (odds / w) * half_sin * half_sin);
    shifted.fixed.push_back(lift + p0 * shrinks);
    shifted.size.push_back(lift + std::abs(p0 * shrinks));
    // odds err by 1 + 3|u|/2 units. theta <= 0.49·pi, so cos(theta) >= 0.03 errs by 50 units of itself, and the
    // argument of log1p, at least -0.49, by twice as much as it does; beyond |u| = 600 odds of e^-600 are left.
    shifted.rounding.push_back(kRounding * (64 + 6 * std::min(std::abs(u), 600.0)));
    shifted.angle.push_back(short_atan2(odds * sine, (1 - q_) + odds * cosine));
  }
  return shifted;
}

const LineMoment::Shifted& LineMoment::shifted(std::vector<Shifted>& known, size_t index, size_t stride) const {
  if (known.empty()) known.resize(kShifts);
  if (known[index].fixed.empty()) known[index] = shifted_at(index, stride);
  return known[index];
}

// The nodes are so close that each kStride-th gives the sum to about a hundredth: the rule's error is e^(-2 pi d/h).
double LineMoment::log_bound_about(size_t index, double t) const {
  if (mass_.size() < kFewNodes) return log_bound(index, t);
  const Shifted& line = shifted(shifts_of_some_, index, kStride);
  double growths = 0;
  double masses = 0;
  for (size_t j = 0; j < line.fixed.size(); ++j) {
    const double mass = mass_[j * kStride];
    growths += mass * std::expm1(line.fixed[j] - t * line.angle[j]);
    masses += mass;
  }
  return std::log1p(std::max(growths / masses, -1 + kLeastLeft));
}

double LineMoment::log_bound(size_t index, double t) const {
  const Shifted& line = shifted(shifts_, index, 1);
  double sum = 0;
  double size = 0;   // of the terms
  double error = 0;  // of their own roundings
  for (size_t j = 0; j < mass_.size(); ++j) {
    const double turned = t * line.angle[j];
    const double exponent = line.fixed[j] - turned;
    const double growth = std::expm1(exponent);
    const double term = mass_[j] * growth;
    sum += term;
    size += std::abs(term);
    // fixed and angle err by line.rounding of themselves, growth by 1 + growth times that and by its own.
    error += mass_[j] * ((of_mass_[j] + 4 * kRounding) * std::abs(growth) +
                         (1 + growth) * line.rounding[j] * (line.size[j] + std::abs(turned)));
  }
  // The masses sum to 1 but for the rule's error, the nodes left out and the error of log M(c); B_y has the first two.
  // Adding n terms in turn costs n/2 roundings of the sum of their moduli (Higham 2002, §4.2).
  const double adding = kRounding * (4 + static_cast<double>(mass_.size()) / 2) * size;
  const double beside = 2 * bound_error_ + 1.01 * log_m_error_;
  const double total = sum + 1.01 * (error + adding) + beside;
  return total > -1 ? std::log1p(total) : 0;
}

double LineMoment::log_rest(double t) const {
  if (exact_) return -count_ * t * t / (2 * sigma_ * sigma_) * (1 - 8 * kRounding);
  // In y the bound falls, then rises: from the last minimum to the next one.
  last_shift_ = least_near(last_shift_, kShifts, [&](size_t index) { return log_bound_about(index, t); }).place;
  // |M| <= M(c), by which values are divided but for its error.
  return count_ * std::min(1.01 * log_m_error_, log_bound(last_shift_, t));
}

LineMoment::ShiftedRest LineMoment::log_rest_at_one_shift(double t) const {
  if (exact_) return {log_rest(t), 0};
  ShiftedRest best{count_ * 1.01 * log_m_error_, 0.1 * std::numbers::pi * sigma_ * sigma_};
  for (size_t index = 0; index < kShifts; ++index) {
    const double shift = angle_of(index) * sigma_ * sigma_;
    if (shift > 0.3 * std::numbers::pi * sigma_ * sigma_) continue;
    const double value = count_ * log_bound(index, t);
    if (value < best.log_rest) best = {value, shift};
  }
  return best;
}

}  // namespace ghostshard::accountant
