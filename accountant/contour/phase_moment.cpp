#include "accountant/contour/phase_moment.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

using LongComplex = std::complex<long double>;
constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr size_t kFewNodes = 2000;

// e^w - 1, to some roundings of its two terms.
LongComplex exp_less_one(LongComplex w) {
  const long double half = std::sin(w.imag() / 2);
  return {std::expm1(w.real()) * std::cos(w.imag()) - 2 * half * half, std::exp(w.real()) * std::sin(w.imag())};
}

// The pairs of a phase that have a part in it, each executed once; and the phase itself if it is no mixture.
std::vector<std::pair<double, ComposedRelease>> parts_of(const ComposedRelease& phase) {
  if (!phase.is_mixture()) return {{1.0, {phase.release, phase.count}}};
  std::vector<std::pair<double, ComposedRelease>> parts;
  if (phase.weight > 0) parts.push_back({phase.weight, {phase.release, 1}});
  for (const auto& [weight, release] : phase.alternatives)
    if (weight > 0) parts.push_back({weight, {release, 1}});
  return parts;
}

}  // namespace

int64_t PhaseMoment::nodes_needed(Direction direction, const ComposedRelease& phase, double c) {
  int64_t needed = 0;
  for (const auto& [weight, part] : parts_of(phase)) needed += LineMoment::nodes_needed(direction, part, c);
  return needed;
}

PhaseMoment::PhaseMoment(Direction direction, const ComposedRelease& phase, double c, bool precise)
    : count_(phase.count), mixture_(phase.is_mixture()) {
  const auto parts = parts_of(phase);
  long double top = 0;
  for (const auto& [weight, part] : parts) {
    parts_.emplace_back(direction, part, c, real_moment(direction, part.release, c), precise);
    top = std::max(top, parts_.back().log_scale());
  }
  if (!mixture_) {
    log_scale_ = parts_.front().log_scale();
    return;
  }
  long double sum = phase.nothing * std::exp(-top);
  for (size_t j = 0; j < parts.size(); ++j) {
    shares_.push_back(parts[j].first * std::exp(parts_[j].log_scale() - top));
    sum += shares_.back();
  }
  for (long double& share : shares_) share /= sum;
  nothing_ = static_cast<double>(phase.nothing * std::exp(-top) / sum);
  log_scale_ = count_ * (top + std::log(sum));
  // The exponents of the shares, of up to `top` if they count, their sum and its logarithm, once each.
  of_shares_ = kLongRounding * (32 + 4 * static_cast<double>(top));
  most_ = of_shares_;
  for (size_t j = 0; j < parts_.size(); ++j)
    most_ += static_cast<double>(shares_[j]) * std::expm1(1.01 * parts_[j].log_m_error());
}

size_t PhaseMoment::nodes() const {
  size_t nodes = 0;
  for (const LineMoment& part : parts_) nodes += part.nodes();
  return nodes;
}

// less_one: M(c+it)/M(c) - 1. error: of it.
LineMoment::Value PhaseMoment::mixed(LongComplex less_one, double error) const {
  const long double re = less_one.real();
  const long double im = less_one.imag();
  const long double norm = 2 * re + re * re + im * im;
  const long double log_modulus = norm > -1 ? std::log1p(norm) / 2 : -750.0L;
  const auto modulus = static_cast<double>(std::exp(log_modulus));
  error += of_shares_;
  // |M| <= M(c), by which values are divided but for its error.
  if (!(count_ * error < 0.01 * modulus))
    return {count_ * (std::log(std::clamp(modulus + error, 1e-300, 1.0)) + 1.01 * most_), 2.01};
  const LongComplex log_power(count_ * log_modulus, count_ * std::atan2(im, 1 + re));
  const auto size = static_cast<double>(std::abs(log_power.real()) + std::abs(log_power.imag()));
  return {log_power, 1.01 * count_ * error / modulus + 4 * kLongRounding * (1 + size)};
}

template <class Real>
void PhaseMoment::sweep(Real step, size_t first, size_t end, const LineMoment::Visitor& visit) const {
  if (!mixture_) {
    parts_.front().sweep<Real>(step, first, end, visit);
    return;
  }
  std::vector<LongComplex> less_one(end - first);
  std::vector<double> error(end - first);
  for (size_t j = 0; j < parts_.size(); ++j) {
    const auto share = static_cast<double>(shares_[j]);
    parts_[j].sweep<Real>(step, first, end, [&](size_t k, const LineMoment::Value& value) {
      less_one[k - first] += shares_[j] * exp_less_one(value.log_power);
      const auto modulus = static_cast<double>(std::exp(value.log_power.real()));
      error[k - first] += share * (modulus * value.relative_error + 16 * kLongRounding) * (1 + 4 * kRounding);
    });
  }
  for (size_t k = first; k < end; ++k) visit(k, mixed(less_one[k - first], error[k - first]));
}
template void PhaseMoment::sweep<double>(double, size_t, size_t, const LineMoment::Visitor&) const;
template void PhaseMoment::sweep<long double>(long double, size_t, size_t, const LineMoment::Visitor&) const;

LineMoment::ShiftedRest PhaseMoment::log_rest_at_one_shift(double t) const {
  return parts_.front().log_rest_at_one_shift(t);
}

void PhaseMoment::look_near(const PhaseMoment& other) const {
  if (!mixture_ && !other.mixture_) parts_.front().look_near(other.parts_.front());
}

// M(c), by which values are divided but for its error.
double PhaseMoment::log_most() const { return 1.01 * count_ * (mixture_ ? most_ : parts_.front().log_m_error()); }

double PhaseMoment::log_rest(double t) const {
  if (!mixture_) return parts_.front().log_rest(t);
  double less_one = 0;
  for (size_t j = 0; j < parts_.size(); ++j)
    less_one += static_cast<double>(shares_[j]) * std::expm1(parts_[j].log_rest(t));
  return count_ * std::min(1.01 * most_, std::log1p(std::max(less_one, -1.0) + 32 * kRounding + of_shares_));
}

double log_rest_of_all(std::span<const PhaseMoment> moments, double t, double enough) {
  double sum = 0;
  for (const bool costly : {false, true}) {
    const PhaseMoment* before = nullptr;  // its best shift is near the next one's
    for (const PhaseMoment& moment : moments) {
      if ((moment.nodes() > kFewNodes) != costly) continue;
      if (costly && sum <= enough) {
        sum += moment.log_most();
        continue;
      }
      if (before != nullptr) moment.look_near(*before);
      sum += moment.log_rest(t);
      before = &moment;
    }
  }
  return sum;
}

}  // namespace ghostshard::accountant
