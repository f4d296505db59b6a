#include "accountant/grid/outcomes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {
namespace {

using Mass = Outcomes::Mass;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNarrow = 3e-4;
constexpr double kLargeLoss = 100;

double upper_tail(double z) { return 0.5 * std::erfc(z * 0.70710678118654752440); }

// The outcome where log w(x) = loss; -infinity if no outcome has so small a loss.
double outcome(SampledGaussian release, double log_q, double loss) {
  const auto [q, sigma] = release;
  if (q == 1) return sigma * sigma * loss + 0.5;
  return sigma * sigma * (log_expm1_plus(loss, q) - log_q) + 0.5;
}

// Probability of a <= N(0,1) < b and its rounding, that of a and b included: from the tails that are small there; of a
// narrow cell, whose tails would cancel, from the series of the density about its middle, times the width: Hermite
// polynomials He2, He4, and the next term, at most (width²·(z² + 5))³/322560, is below the rounding. All times
// e^log_scale, which may be too large for a double, and the probability too small.
Mass between(double a, double b, double log_scale = 0) {
  const double width = b - a;
  const double middle = (a + b) / 2;
  const double square = middle * middle;
  const double spread = width * width;
  if (spread * (square + 5) < kNarrow) {
    const double density = 0.39894228040143267794 * std::exp(log_scale - square / 2);
    const double series = 1 + spread * ((square - 1) / 24 + spread * (square * square - 6 * square + 3) / 1920);
    const double value = std::max(0.0, density * width * series);
    return {value,
            kRounding * ((9 + square + std::abs(log_scale)) * value + 1.1 * density * (std::abs(a) + std::abs(b)))};
  }
  const bool right = middle > 0;
  const auto tail = [&](double z) { return log_scale == 0 ? upper_tail(z) : std::exp(log_scale + log_upper_tail(z)); };
  const double outer = tail(right ? a : -b);
  const double inner = tail(right ? b : -a);
  const double z = right ? a : b;
  return {std::max(0.0, outer - inner), kRounding * (6 + 3 * z * z + 2 * std::abs(log_scale)) * (outer + inner)};
}

double log_w(SampledGaussian release, double x) {
  return log_mixture(release.q, (2 * x - 1) / (2 * release.sigma * release.sigma));
}

// All of it, times e^loss.
Mass lifted(const Mass& mass, double loss) {
  const double growth = std::exp(loss);
  return {mass.value * growth, growth * (mass.error + kRounding * (2 + std::abs(loss)) * mass.value)};
}

}  // namespace

double log_mixture(double q, double u) {
  if (q == 1) return u;  // without the -infinity that expm1 would round it to
  if (u > 300) return std::log(q) + u;
  const double v = q * std::expm1(u);
  return v < -0.5 ? std::log((1 - q) + q * std::exp(u)) : std::log1p(v);  // 1 + v loses digits as q goes to 1
}

std::pair<double, double> losses_of(Direction direction, SampledGaussian release, double low, double high) {
  const bool remove = direction == Direction::kRemove;
  return remove ? std::pair(log_w(release, low), log_w(release, high))
                : std::pair(-log_w(release, high), -log_w(release, low));
}

Outcomes::Boundary Outcomes::at(double loss) const {
  return at_outcome(std::clamp(outcome(release_, log_q_, remove_ ? loss : -loss), -nowhere_, nowhere_));
}

// outcome() rounds e^loss - 1 + q, or what is left of it, by 2 units of e^loss, its logarithm, log q and their
// difference u by one of each, and x = sigma²·u + 1/2 by one of |sigma²·u| and of |x|. The loss grows by at most
// 1/sigma² with x.
double Outcomes::misplaced(double loss) const {
  const auto [q, sigma] = release_;
  if (q == 1) return kRounding * (2 + 2 * std::abs(loss) + 1 / (sigma * sigma));
  const double log_left = log_expm1_plus(remove_ ? loss : -loss, q);
  if (!(log_left > -kInfinity)) return 0;
  return kRounding *
         (4 + 2 * std::abs(log_left) + 2 * std::abs(log_q_) + 3 * std::abs(log_left - log_q_) + 1 / (sigma * sigma));
}

Outcomes::Masses Outcomes::between(const Boundary& low, const Boundary& high, double loss) const {
  const double q = release_.q;
  const auto of_zero = [&](double log_scale) {
    return remove_ ? accountant::between(low.zero, high.zero, log_scale)
                   : accountant::between(high.zero, low.zero, log_scale);
  };
  const auto of_one = [&](double log_scale) {
    return remove_ ? accountant::between(low.one, high.one, log_scale)
                   : accountant::between(high.one, low.one, log_scale);
  };
  const Mass zero = of_zero(0);
  const Mass one = of_one(0);
  const Mass mixture = q == 1 ? one
                              : Mass{(1 - q) * zero.value + q * one.value,
                                     (1 - q) * zero.error + q * one.error + 4 * kRounding * zero.value};
  const Mass& p = remove_ ? mixture : zero;
  const Mass& plain = remove_ ? zero : mixture;
  if (std::abs(loss) > kLargeLoss) return {p, remove_ ? of_zero(loss) : q == 1 ? of_one(loss) : lifted(plain, loss)};
  return {p, lifted(plain, loss)};
}

double Outcomes::beyond(const Boundary& boundary) const {
  const double zero = upper_tail(remove_ ? boundary.zero : -boundary.zero);
  const double one = upper_tail(remove_ ? boundary.one : -boundary.one);
  return (remove_ ? (1 - release_.q) * zero + release_.q * one : zero) * (1 + 1e-12) + 1e-300;
}

}  // namespace ghostshard::accountant
