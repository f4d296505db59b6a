#include "accountant/contour/excess_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUp = 1 + 1e-9;      // more than some hundred roundings
constexpr double kFarthest = 8;       // standard deviations
constexpr double kUnderflow = 30;     // beyond, probabilities are taken in logarithms only
constexpr double kStep = 1.0 / 6;     // of a standard deviation
constexpr double kGrowth = 0.25;      // of log H in a cell
constexpr double kNegligible = 0.02;  // of the sum, for what is beyond
constexpr int kMostCells = 20'000;
constexpr double kWidestShift = 0.6;  // phi·tan(theta): e^this < 2, so that D falls up to y = 1

// |∫_1^s (r^a - 1) dr|, s = 1 + x, rounded up by more than the difference of two close numbers loses.
double power_excess(double x, double a) {
  if (std::abs(a * x) < 1e-4) return std::abs(a) * x * x / 2 * std::max(1.0, std::exp((a - 1) * std::log1p(x))) * kUp;
  return std::abs(std::expm1((a + 1) * std::log1p(x)) / (a + 1) - x) * (1 + 1e-8);
}

// H for one sort of outcomes, s = 1 + x, or 1 - x if they are below: |f''| <= bend·s^(a-1), |f'| <= size·(1 +
// swell·s^a).
struct Growth {
  double bend, size, swell, a;
  bool below;

  double excess(double x) const { return a == 0 ? 0 : power_excess(below ? -x : x, a); }
  // By the first bound alone.
  double first(double x) const { return a == 0 ? bend * x * x / 2 * kUp : bend / std::abs(a) * excess(x) * kUp; }
  double slope(double x) const {
    return (a == 0 ? bend * x : bend / std::abs(a) * std::abs(std::expm1(a * std::log1p(below ? -x : x)))) * kUp;
  }
};

class Turning {
 public:
  Turning(const Growth& growth, double turn)
      : growth_(growth),
        turn_(turn),
        first_(growth.first(turn)),
        slope_(std::max(growth.slope(turn), growth.size * (1 + growth.swell) * kUp)),
        excess_(growth.excess(turn) * (1 - 1e-3)) {}  // not above the truth

  double operator()(double x) const {
    if (x <= turn_) return growth_.first(x);
    const double more = growth_.size * growth_.swell * std::max(0.0, growth_.excess(x) - excess_);
    return (first_ + slope_ * (x - turn_) + more) * kUp;
  }
  // K of H <= K·(1 + D)^b.
  double factor() const { return (first_ + slope_ + growth_.size * growth_.swell) * kUp; }

 private:
  Growth growth_;
  double turn_, first_, slope_, excess_;
};

// H as a function of y, for all angles.
class Integrand {
 public:
  Integrand(Direction direction, double c, double t, const ComplexReleases& releases)
      : q_(releases.most_q), phi_(releases.phi), stretch_(std::exp(releases.phi * std::tan(releases.theta)) * kUp) {
    const double turning = std::exp(t * q_ * std::sin(phi_) / (1 - q_)) * kUp;
    const double bend = std::hypot(c, t) * std::hypot(1 + c, t) * turning * kUp;
    const double turn = 2 / std::hypot(c + 0.5, t);
    if (direction == Direction::kRemove) {
      const double size = std::hypot(1 + c, t) * kUp;
      // s^(c-1) <= (1 + x)^(c-1), or (1 - q)^(c-1); s^c <= 1 + x if c < 1.
      const Growth growth = c >= 1 ? Growth{bend, size, turning, c, false}
                                   : Growth{bend * std::pow(1 - q_, c - 1) * kUp, size, turning, 1, false};
      above_.emplace(growth, turn);
      power_ = 1 + growth.a;
      return;
    }
    const double size = std::hypot(c, t) * kUp;
    above_.emplace(Growth{bend, size, turning, 0, false}, turn);
    // D <= q·(1 - y + reach) where e^u < 1 at some angle.
    reach_ = ((stretch_ - 1) * (2 + stretch_) + phi_) * kUp;
    if (q_ * (1 + reach_) < 0.99)
      below_.emplace(Growth{bend, size, turning, -(1 + c), true}, std::min(turn, 0.5));
    else
      usable_ = false;
  }

  bool usable() const { return usable_; }
  double above(double y) const { return (*above_)(q_ * (std::abs(y - 1) + (stretch_ - 1) * y + phi_) * kUp); }
  double below(double y) const { return below_ && y < 1 + reach_ ? (*below_)(q_ * (1 - y + reach_) * kUp) : 0; }
  // An upper bound on its mean over larger u, log y ~ N(-v/2, v); +infinity where there is none.
  double beyond(double u, double v) const {
    const double y = std::exp(u);
    if (!(y >= 1 + reach_)) return kInfinity;
    const double root = std::sqrt(v);
    const double log_mean =
        power_ * (power_ - 1) * v / 2 - power_ * u + log_upper_tail(u / root + (0.5 - power_) * root);
    const double log_height = power_ * std::log1p(q_ * (phi_ + stretch_ * y));
    return above_->factor() * std::exp(log_mean + log_height) *
           (1 + 1e-14 * (std::abs(log_mean) + power_ * (std::abs(u) + power_ * v) + log_height)) * kUp;
  }
  // By how much its logarithm rises at most, nearly, with u.
  double rise(double y) const { return power_ * q_ * y / (1 + q_ * y); }

 private:
  double q_, phi_, stretch_, reach_ = 0, power_ = 1;
  std::optional<Turning> above_, below_;
  bool usable_ = true;
};

// Of a standard normal between two numbers, rounded up.
double probability(double low, double high) {
  constexpr double kRoot = 1 / std::numbers::sqrt2;
  const double value =
      low >= 0 ? std::erfc(low * kRoot) - std::erfc(high * kRoot) : std::erfc(-high * kRoot) - std::erfc(-low * kRoot);
  // erfc's argument is rounded, which changes it by z² roundings of itself.
  const double nearest = std::min(std::abs(low), std::abs(high));
  return value / 2 + 1e-15 * (1 + nearest * nearest) * std::erfc(nearest * kRoot);
}

double mean_of(const Integrand& integrand, double v) {
  const double root = std::sqrt(v);
  // Below the first cell y is near 0, and H(D) largest at 0.
  double z = -kFarthest;
  double sum = probability(-2 * kFarthest, z) * 1.01 * (integrand.above(0) + integrand.below(0));
  double y = std::exp(root * z - v / 2);
  double above = integrand.above(y);
  for (int i = 0; i < kMostCells; ++i) {
    const double step = std::min(kStep, kGrowth / (root * (integrand.rise(y) + 1e-9)));
    const double next = z + step;
    const double next_y = std::exp(root * next - v / 2);
    const double next_above = integrand.above(next_y);
    // A step over y = 1 has its larger end too: D falls on one side and rises on the other.
    sum += probability(z, next) * (std::max(above, next_above) + integrand.below(y)) * (1 + 1e-9);
    z = next;
    y = next_y;
    above = next_above;
    if (!(sum < kInfinity)) return kInfinity;
    if (z < 1 || (i % 8 != 0 && z < kUnderflow)) continue;
    const double beyond = integrand.beyond(root * z - v / 2, v);
    if (beyond <= kNegligible * sum || (z >= kUnderflow && beyond < kInfinity)) return sum + beyond;
    if (z >= kUnderflow) return kInfinity;
  }
  return kInfinity;
}

}  // namespace

double density_factor(const ComplexReleases& releases) {
  const double cosine = std::cos(releases.theta);
  const double sine = std::sin(releases.theta);
  const double v = releases.most_v / cosine;
  const double of_rate = releases.phi * releases.phi / (2 * releases.least_v * cosine * cosine) +
                         releases.phi * std::tan(releases.theta) / 2;
  return std::exp((of_rate + v * sine * sine / 8) * kUp) / std::sqrt(cosine) * kUp;
}

double excess_bound(Direction direction, double c, double t, const ComplexReleases& releases) {
  const auto& [least_v, most_v, theta, most_q, phi] = releases;
  if (!(most_q < 1) || !(theta < 1.5) || !(phi < 1.5) || !(phi * std::tan(theta) < kWidestShift)) return kInfinity;
  const Integrand integrand(direction, c, t, releases);
  if (!integrand.usable()) return kInfinity;
  const double bound = density_factor(releases) * mean_of(integrand, most_v / std::cos(theta) * kUp) * kUp;
  return bound >= 0 ? bound : kInfinity;  // NaN becomes infinity
}

}  // namespace ghostshard::accountant
