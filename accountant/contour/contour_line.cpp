#include "accountant/contour/contour_line.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/least_double.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMostCancelling = 14;
constexpr double kMostUnderRule = 9;
constexpr int64_t kMostMeshNodes = 400'000;  // of all moments; a kilobyte each
constexpr int64_t kMostNodes = 2'000'000;
constexpr double kCancelling = 5;     // from here on integrand and sum are kept in long double
constexpr int64_t kPreciseCost = 40;  // of an evaluation in long double, in those in double
constexpr size_t kLeastPrecise = 80'000;
constexpr size_t kLongSum = 1000;
constexpr size_t kTurns = 64;
constexpr size_t kManyPhases = 16;

// |z| <= |re| + |im|, without a root; within its rounding.
double modulus_at_most(std::complex<long double> z) {
  return std::abs(static_cast<double>(z.real())) + std::abs(static_cast<double>(z.imag()));
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Beyond the last node

namespace {

// An upper bound on log |M(c+it')/M(c)| of all releases, for all t' >= t.
using LogRest = std::function<double(double t)>;

// Sum over the nodes t_k >= t, a step apart, of an upper bound of |M(c+it_k)/M(c)|/t_k², by doublings of t. +infinity
// if it exceeds `wanted`.
double rest_beyond(const LogRest& log_rest, double t, double step, double wanted) {
  double sum = 0;
  for (int i = 0; i < 200; ++i) {
    // Σ 1/t_k², t_k >= t. The logarithms, of some hundred each, and their sum err by less than a thousandth.
    const double share = 1.001 * std::exp(log_rest(t)) * (1 / (step * t) + 1 / (t * t));
    sum += share;
    if (!(sum <= wanted)) return kInfinity;
    if (share <= wanted - sum) return sum + share;  // the shares fall at least by halves
    t *= 2;
  }
  return kInfinity;
}

}  // namespace

std::optional<LineChoice> choose_line(Direction direction, std::span<const ComposedRelease> phases, double saddle,
                                      double epsilon, double log_delta, double intercept, double wanted_digits,
                                      const SigmaRule* rule) {
  // K on a geometric grid around the saddle point gives the cost of each intercept.
  std::vector<std::pair<double, double>> grid;  // (c, K(c))
  for (const double share : {0.3, 0.4,  0.5,  0.6,  0.7,  0.78, 0.84, 0.89, 0.93, 0.96, 0.98, 0.99,
                             1.0, 1.01, 1.03, 1.07, 1.15, 1.3,  1.5,  1.8,  2.2,  3.0,  4.0,  5.5}) {
    const double c = saddle * share;
    if (share <= intercept) continue;  // only those beyond the intercept are asked for then
    const RealMoment moment = composed_moment(direction, phases, c);
    const double k = moment.log_m + moment.error + (rule != nullptr ? rule->log_error(c, 0) : 0);
    grid.emplace_back(c, k);
    if (share > 1 && !(k - c * epsilon <= 60 - 3 * log_delta)) break;  // useless from here on
  }
  const auto period_of = [&](double c) {
    double right = kInfinity;
    for (const auto& [other, k] : grid)
      if (other > c)
        right = std::min(right, (k - other * epsilon + log_kappa(other) - log_delta + wanted_digits) / (other - c));
    return std::max({right, (wanted_digits - log_delta) / c, 1e-300});
  };
  LineChoice choice;
  if (intercept > 0) {
    choice.c = saddle * intercept;
  } else {
    // The shortest period among the intercepts where the integrand does not exceed the integral by much more than it
    // must. If it does by more than kCancelling, long double is needed, which costs some times as much.
    const auto log_excess = [&](double c, double k) {
      return k - c * epsilon - std::log(c) - std::log1p(c) - log_delta;
    };
    double smallest = kInfinity;
    for (const auto& [c, k] : grid) smallest = std::min(smallest, log_excess(c, k));
    double least = kInfinity;
    for (const auto& [c, k] : grid) {
      const double excess = log_excess(c, k);
      // What a rule of rates misses is relative to the integrand, and no arithmetic helps.
      const bool of_rates = rule != nullptr && rule->has_rates();
      if (!(excess <= std::max(smallest + 3, of_rates ? kMostUnderRule : kMostCancelling))) continue;
      const double cost = period_of(c) * (excess > kCancelling ? 6 : 1);
      if (cost < least) {
        least = cost;
        choice.c = c;
      }
    }
    if (!(choice.c > 0)) return std::nullopt;
  }
  choice.period = period_of(choice.c);
  if (!(choice.period < 1e300)) return std::nullopt;
  for (const auto& point : grid)
    if (point.first > choice.c) choice.beyond.push_back(point);
  return choice;
}

namespace {

// The moments of all phases on a line.
struct LineMoments {
  std::vector<PhaseMoment> each;
  long double log_scale = 0;  // log M(c) of all executions, as the moments are divided by it
  size_t nodes = 0;           // of all meshes
};
std::optional<LineMoments> moments_on_line(Direction direction, std::span<const ComposedRelease> phases, double c) {
  int64_t needed = 0;
  for (const ComposedRelease& phase : phases) needed += PhaseMoment::nodes_needed(direction, phase, c);
  if (needed > kMostMeshNodes) return std::nullopt;
  LineMoments moments;
  for (const ComposedRelease& phase : phases) {
    moments.each.emplace_back(direction, phase, c, false);
    moments.log_scale += moments.each.back().log_scale();
    moments.nodes += moments.each.back().nodes();
  }
  moments.nodes = std::max<size_t>(moments.nodes, 1);
  return moments;
}

// How far the nodes must go for the rest beyond them to be at most `wanted`. Nothing if that is beyond `farthest`.
struct LineEnd {
  double t;
  double rest;
};
std::optional<LineEnd> end_of_line(const LogRest& log_rest, double step, double wanted, double farthest) {
  LineEnd end{4 * step, 0};
  double too_near = 0;
  while (!((end.rest = rest_beyond(log_rest, end.t, step, wanted)) < kInfinity)) {
    too_near = end.t;
    end.t *= 2;
    if (too_near > farthest) return std::nullopt;
  }
  for (int i = 0; i < 4 && end.t > too_near * 1.1 && end.t > 8 * step; ++i) {
    const double middle = too_near == 0 ? end.t / 2 : std::sqrt(too_near * end.t);
    const double rest = rest_beyond(log_rest, middle, step, wanted);
    if (rest < kInfinity) end.rest = rest;
    (rest < kInfinity ? end.t : too_near) = middle;
  }
  if (end.t > farthest) return std::nullopt;
  return end;
}

}  // namespace

struct ContourLine::Begun {
  ContourLine line;
  LineMoments moments;
  size_t n;  // nodes along the line
};

std::optional<ContourLine::Begun> ContourLine::begin(Direction direction, std::span<const ComposedRelease> phases,
                                                     double saddle, double epsilon, double log_delta, double intercept,
                                                     int64_t budget, double wanted_digits, const SigmaRule* rule) {
  auto choice = choose_line(direction, phases, saddle, epsilon, log_delta, intercept, wanted_digits, rule);
  if (!choice) return std::nullopt;
  ContourLine line;
  const double c = line.c_ = choice->c;
  line.period_ = choice->period;
  line.chernoff_ = std::move(choice->beyond);
  auto moments = moments_on_line(direction, phases, c);
  if (!moments) return std::nullopt;
  if (rule != nullptr) rule->align(moments->each);
  line.log_scale_ = moments->log_scale;
  line.phases_ = phases.size();
  const auto log_scale = static_cast<double>(moments->log_scale);
  const size_t nodes = moments->nodes;

  const auto step = line.step<double>();
  const double wanted = std::exp(log_delta + c * epsilon - log_scale + std::log(line.period_ / 2) - wanted_digits);
  double farthest = step * static_cast<double>(std::min(kMostNodes, budget / static_cast<int64_t>(nodes)));
  if (rule != nullptr) farthest = std::min(farthest, rule->reach(c) - step);
  const auto log_rest = [&](double t) {
    if (rule != nullptr) return rule->log_rest(moments->each, c, t);
    double sum = 0;
    const PhaseMoment* before = nullptr;  // its best shift is near the next one's
    for (const PhaseMoment& moment : moments->each) {
      if (before != nullptr) moment.look_near(*before);
      sum += moment.log_rest(t);
      before = &moment;
    }
    return sum;
  };
  // The rest falls with t: of many phases, asking at the farthest end first saves asking all the way in vain.
  if (phases.size() > kManyPhases && !(rest_beyond(log_rest, std::max(farthest, step), step, wanted) < kInfinity))
    return std::nullopt;
  const auto end = end_of_line(log_rest, step, wanted, farthest);
  if (!end) return std::nullopt;
  line.rest_ = end->rest;

  const auto n = static_cast<size_t>(std::ceil(end->t / step));
  const double excess = log_scale - c * epsilon - std::log(c) - std::log1p(c) - log_delta;
  line.precise_ =
      excess > kCancelling && n * nodes <= std::max(kLeastPrecise, static_cast<size_t>(budget / kPreciseCost));
  return Begun{std::move(line), *std::move(moments), n};
}

std::optional<ContourLine> ContourLine::make(Direction direction, std::span<const ComposedRelease> phases,
                                             double saddle, double epsilon, double log_delta, double intercept,
                                             int64_t budget, double wanted_digits, const SigmaRule* rule) {
  auto begun = begin(direction, phases, saddle, epsilon, log_delta, intercept, budget, wanted_digits, rule);
  if (!begun) return std::nullopt;
  auto& [line, moments, n] = *begun;
  if (line.precise_)
    for (size_t i = 0; i < phases.size(); ++i) moments.each[i] = PhaseMoment(direction, phases[i], line.c_, true);
  line.take_integrand(moments.each, n, rule);
  return std::move(line);
}

std::optional<ContourLine::Extent> ContourLine::extent(Direction direction, std::span<const ComposedRelease> phases,
                                                       double saddle, double epsilon, double log_delta,
                                                       int64_t budget) {
  constexpr double kAllDigits = 32;
  const auto begun = begin(direction, phases, saddle, epsilon, log_delta, 0, budget, kAllDigits, nullptr);
  if (!begun) return std::nullopt;
  return Extent{begun->line.c_, begun->line.step<double>() * static_cast<double>(begun->n)};
}

void ContourLine::take_integrand(std::span<const PhaseMoment> moments, size_t n, const SigmaRule* rule) {
  integrand_.assign(n, 0);
  error_.assign(n, 0);
  if (rule != nullptr)
    for (size_t k = 0; k < n; ++k)
      error_[k] = std::expm1(rule->log_error(c_, step<double>() * static_cast<double>(k))) * (1 + 8 * kRounding);
  std::vector<double> sizes(n, 0);  // sums of moduli: the rounding of adding so many logarithms
  const auto add = [&](size_t k, const LineMoment::Value& value) {
    integrand_[k] += value.log_power;
    error_[k] += value.relative_error * (1 + error_[k]);  // (1+a)(1+b) - 1 <= a + b(1+a)
    sizes[k] += modulus_at_most(value.log_power);
  };
  for (const PhaseMoment& moment : moments)
    if (precise_)
      moment.sweep<long double>(step<long double>(), n, add);
    else
      moment.sweep<double>(step<double>(), n, add);
  const double unit = precise_ ? static_cast<double>(std::numeric_limits<long double>::epsilon()) : kRounding;
  const double adding = kLongRounding * static_cast<double>(moments.size());
  for (size_t k = 0; k < n; ++k) {
    const double size = modulus_at_most(integrand_[k]);
    integrand_[k] = over_z(integrand_[k], k);
    const double roundings = unit * (16 + 2 * size) + adding * sizes[k];
    error_[k] = modulus_at_most(integrand_[k]) * (error_[k] + roundings * (1 + error_[k])) * (1 + 8 * kRounding);
  }
}

std::complex<long double> ContourLine::over_z(std::complex<long double> log_power, size_t k) const {
  if (precise_) {
    const std::complex<long double> z(c_, step<long double>() * static_cast<long double>(k));
    return std::exp(log_power) / (z * (z + 1.0L));
  }
  const double t = step<double>() * static_cast<double>(k);
  const double re = c_ * (c_ + 1) - t * t;  // of z(z+1)
  const double im = (2 * c_ + 1) * t;
  const Complex power = std::exp(Complex(log_power)) / ((c_ * c_ + t * t) * ((c_ + 1) * (c_ + 1) + t * t));
  return Complex(power.real() * re + power.imag() * im, power.imag() * re - power.real() * im);
}

ContourLine::Value ContourLine::at(double epsilon) const {
  return precise_ ? evaluate<long double>(epsilon) : evaluate<double>(epsilon);
}

template <class Real>
ContourLine::Value ContourLine::evaluate(double epsilon) const {
  Real real_sum = 0;
  Real real_slope = 0;
  double error = 2 * rest_;
  const auto unit = static_cast<double>(std::numeric_limits<Real>::epsilon());
  // On a long line the sines are taken once in kTurns nodes; a product adds its rounding and its factor's.
  const bool turns = integrand_.size() > kLongSum;
  const double of_turning = turns ? kTurns * (3 + static_cast<double>(step<Real>()) * epsilon) : 0;
  const std::complex<Real> turn(std::cos(step<Real>() * epsilon), std::sin(step<Real>() * epsilon));
  Real turn_re = 1;
  Real turn_im = 0;
  for (size_t k = integrand_.size(); k-- > 0;) {
    const Real t = step<Real>() * static_cast<Real>(k);
    const Real angle = -t * epsilon;
    const auto re = static_cast<Real>(integrand_[k].real());
    const auto im = static_cast<Real>(integrand_[k].imag());
    if (turns && k % kTurns != kTurns - 1 && k + 1 != integrand_.size()) {
      const Real next = turn_re * turn.real() - turn_im * turn.imag();
      turn_im = turn_re * turn.imag() + turn_im * turn.real();
      turn_re = next;
    } else {
      turn_re = std::cos(angle);
      turn_im = std::sin(angle);
    }
    const Real term_re = re * turn_re - im * turn_im;
    const Real term_im = re * turn_im + im * turn_re;
    const double weight = k == 0 ? 1 : 2;
    real_sum += weight * term_re;
    real_slope -= weight * (c_ * term_re - t * term_im);
    // Added up from the last to the first: the sum that k nodes have yet to join is rounded k times more.
    const double modulus = std::abs(static_cast<double>(term_re)) + std::abs(static_cast<double>(term_im));
    error +=
        weight * (error_[k] + modulus * unit *
                                  (4 + std::abs(static_cast<double>(angle)) + of_turning + static_cast<double>(k) / 2));
  }
  const auto sum = static_cast<double>(real_sum);
  const auto slope = static_cast<double>(real_slope);
  const long double exponent = log_scale_ - static_cast<long double>(c_) * epsilon;
  const double scale = std::exp(static_cast<double>(exponent)) / period_;
  // log_scale_ is a sum over the phases, none of them negative (chernoff.cpp), each with some roundings of its own.
  const double of_exponent =
      kLongRounding *
      ((static_cast<double>(phases_) + 16) * static_cast<double>(std::abs(log_scale_)) + 2 * c_ * std::abs(epsilon));
  const double of_scale = kRounding * (8 + std::abs(static_cast<double>(exponent))) + 1.01 * of_exponent;
  Value value{scale * sum, scale * slope, {0, 1}};
  // Every bound above is itself a sum of so many rounded numbers.
  const double own = 1 + kRounding * (64 + 2 * static_cast<double>(integrand_.size()));
  const double lost = kLeast * (8 + (1 + 1 / period_) * (std::abs(sum) + error));  // of a scale below 2^-1022
  const double rounding = (scale * error * (1 + of_scale) + of_scale * std::abs(value.delta)) * own + lost;

  double right = kInfinity;
  for (const auto& [c, k] : chernoff_) {
    const double first =
        std::exp(log_chernoff(c, k, epsilon) - (c - c_) * period_) * (1 + 4 * kRounding * (2 + (c - c_) * period_)) +
        kLeast;
    right = std::min(right, first / -std::expm1(-(c - c_) * period_) * (1 + 8 * kRounding));
  }
  const double left = std::exp(-c_ * period_) / -std::expm1(-c_ * period_) * (1 + 4 * kRounding * (2 + c_ * period_));
  value.bracket = {std::max(0.0, value.delta - rounding - right - left), std::min(1.0, value.delta + rounding)};
  if (!(value.bracket.lower <= value.bracket.upper)) value.bracket = {0, 1};  // a NaN says nothing
  return value;
}

}  // namespace ghostshard::accountant
