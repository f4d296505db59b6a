#include "accountant/receipt/line.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"

namespace ghostshard::accountant::receipt {
namespace {

using LongComplex = std::complex<long double>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr size_t kMostNodes = 200'000;
constexpr size_t kMostPrecise = 4'000;  // nodes: beyond, doubles suffice for what is proven
// Microseconds of the checker: for a node of a mesh, a turn of one, a node of the line.
constexpr double kMeshNode = 1300, kTurn = 1.2, kLineNode = 2500;

long double step_of(double period) { return 2 * std::numbers::pi_v<long double> / period; }

double modulus_at_most(LongComplex z) {
  return std::abs(static_cast<double>(z.real())) + std::abs(static_cast<double>(z.imag()));
}

double rounded_up(long double value) {
  return std::nextafter(static_cast<double>(value + std::abs(value) * 4 * kLongRounding), kInfinity);
}

}  // namespace

double mesh_nodes(Direction direction, const ComposedRelease& phase, double c, double shift, double t) {
  if (phase.release.q == 1) return 0;
  const double v = phase.release.sigma * phase.release.sigma;
  const double digits = 90 + std::log(phase.count) + 0.7 * std::min(c, 80.0);
  double widest = 0;
  for (double strip = 0.495 * std::numbers::pi * v - shift; strip > 1e-5 * v; strip *= 0.88) {
    double size = (shift + strip) * (shift + strip) / (2 * v) + t * std::max(0.0, strip - shift) / v + 1;
    if (direction == Direction::kAdd) size -= c * std::log(std::cos((shift + strip) / (2 * v)));
    widest = std::max(widest, 2 * std::numbers::pi * strip / (digits + size));
  }
  const double reach = phase.release.sigma * std::sqrt(2 * digits + shift * shift / v + 1.4 * (1 + c));
  return (2 * reach + 1 + c) / std::min(widest, phase.release.sigma / 2);
}

bool Line::find_end(std::span<const PhaseMoment> moments, std::span<const ComposedRelease> phases, Direction direction,
                    const Request& request) {
  const auto step = static_cast<double>(step_of(period_));
  const double wanted = request.log_delta - request.digits;
  // With n nodes the rest is e^(this), as rest() has it.
  const auto log_rest = [&](size_t n) {
    const double t = step * static_cast<double>(n);
    shifts_.clear();
    log_rest_ = -smoothing_ * smoothing_ * t * t / 2;
    for (size_t i = 0; i < moments.size(); ++i) {
      LineMoment::ShiftedRest found = moments[i].log_rest_at_one_shift(t);
      if (smoothing_ > 0) {  // the kernel falls by itself: M(c) bounds the moment, and the shift is the cheapest
        found.log_rest = 1e-9;
        double least = kInfinity;
        for (double share = 0.24; share > 1e-3 && phases[i].release.q < 1; share *= 0.8) {
          const double shift = share * std::numbers::pi * phases[i].release.sigma * phases[i].release.sigma;
          const double nodes = mesh_nodes(direction, phases[i], c_, shift, t);
          if (nodes < least) found.shift = shift;
          least = std::min(least, nodes);
        }
      }
      log_rest_ += found.log_rest * (1 - 1e-9) + 1e-9;
      shifts_.push_back(found.shift);
    }
    log_rest_ += std::log(2 / period_) + 2 * std::log(period_ / (2 * std::numbers::pi)) +
                 std::log(1 / static_cast<double>(n) + 1 / (static_cast<double>(n) * static_cast<double>(n))) + 1e-9;
    return std::log(rest(request.epsilon));
  };
  size_t n = 8;
  while (!(log_rest(n) <= wanted)) {
    n *= 2;
    if (n > kMostNodes) return false;
  }
  size_t too_few = n / 2;
  for (int i = 0; i < 4 && n > 8; ++i) {
    const size_t middle = (too_few + n) / 2;
    (log_rest(middle) <= wanted ? n : too_few) = middle;
  }
  (void)log_rest(n);
  integrand_.resize(n);
  double work = kLineNode * static_cast<double>(n * phases.size());
  for (size_t i = 0; i < phases.size(); ++i)
    work += mesh_nodes(direction, phases[i], c_, shifts_[i], step * static_cast<double>(n)) *
            (kMeshNode + kTurn * static_cast<double>(n));
  return work <= request.most_work;
}

std::optional<Line> Line::make(Direction direction, std::span<const ComposedRelease> phases, const Request& request) {
  const auto saddle = saddle_of_epsilon(direction, phases, request.epsilon);
  if (!saddle) return std::nullopt;
  const auto choice = choose_line(direction, phases, *saddle, request.epsilon, request.log_delta, 0, request.digits);
  if (!choice) return std::nullopt;
  Line line;
  line.c_ = choice->c;
  line.period_ = choice->period;
  line.smoothing_ = request.smoothing / (1 + line.c_);
  std::vector<PhaseMoment> moments;
  for (const ComposedRelease& phase : phases) {
    if (PhaseMoment::nodes_needed(direction, phase, line.c_) > 100'000) return std::nullopt;
    moments.emplace_back(direction, phase, line.c_, false);
    line.log_scale_ += moments.back().log_scale();
  }
  if (!line.find_end(moments, phases, direction, request)) return std::nullopt;
  const size_t n = line.integrand_.size();
  const bool precise = n <= kMostPrecise;
  if (precise)
    for (size_t i = 0; i < phases.size(); ++i) moments[i] = PhaseMoment(direction, phases[i], line.c_, true);
  line.take_integrand(moments, n, precise);
  return line;
}

// M(z)·e^(smoothing²(z+1)²/2)/(z(z+1)) at every node, relative to M(c).
void Line::take_integrand(std::span<const PhaseMoment> moments, size_t n, bool precise) {
  integrand_.assign(n, 0);
  error_.assign(n, 0);
  std::vector<double> sizes(n, 0);
  const auto add = [&](size_t k, const LineMoment::Value& value) {
    integrand_[k] += value.log_power;
    error_[k] += value.relative_error * (1 + error_[k]);
    sizes[k] += modulus_at_most(value.log_power);
  };
  const long double step = step_of(period_);
  for (const PhaseMoment& moment : moments)
    if (precise)
      moment.sweep<long double>(step, 0, n, add);
    else
      moment.sweep<double>(static_cast<double>(step), 0, n, add);
  const double unit = precise ? kLongRounding : kRounding;
  for (size_t k = 0; k < n; ++k) {
    const LongComplex z(c_, step * static_cast<long double>(k));
    const LongComplex kernel =
        (z + 1.0L) * (z + 1.0L) * static_cast<long double>(smoothing_) * static_cast<long double>(smoothing_) / 2.0L;
    integrand_[k] = std::exp(integrand_[k] + kernel) / (z * (z + 1.0L));
    const double roundings =
        unit * (32 + 4 * sizes[k]) + kLongRounding * (64 + 8 * modulus_at_most(kernel) + 8 * sizes[k]);
    error_[k] = modulus_at_most(integrand_[k]) * (error_[k] + roundings * (1 + error_[k])) * 1.001;
  }
}

std::vector<double> Line::terms(double epsilon) const {
  const long double exponent = log_scale_ - static_cast<long double>(c_) * epsilon;
  const long double scale = std::exp(exponent) / period_;
  const double of_scale =
      kLongRounding * (64 + 4 * static_cast<double>(std::abs(log_scale_)) + 4 * c_ * std::abs(epsilon));
  std::vector<double> found;
  found.reserve(integrand_.size());
  for (size_t k = 0; k < integrand_.size(); ++k) {
    const long double angle = step_of(period_) * static_cast<long double>(k) * epsilon;
    const LongComplex& value = integrand_[k];
    const long double term = value.real() * std::cos(angle) + value.imag() * std::sin(angle);
    const double modulus = modulus_at_most(value);
    const double error = error_[k] + modulus * (of_scale + kLongRounding * (16 + 4 * static_cast<double>(angle)));
    found.push_back(rounded_up((k == 0 ? 1 : 2) * scale * (term + error * 1.001)));
  }
  return found;
}

double Line::rest(double epsilon) const {
  const double exponent =
      static_cast<double>(log_scale_) - c_ * epsilon + log_rest_ + smoothing_ * smoothing_ * (1 + c_) * (1 + c_) / 2;
  return std::max(std::exp(exponent) * (1 + 1e-8 + 1e-14 * std::abs(static_cast<double>(log_scale_))),
                  std::numeric_limits<double>::min());
}

double Line::bound(double epsilon) const {
  long double sum = rest(epsilon);
  for (const double term : terms(epsilon)) sum += term;
  return rounded_up(sum);
}

nlohmann::json Line::certificate(double epsilon) const {
  return {{"method", "contour"}, {"intercept", c_},       {"period", period_},      {"smoothing", smoothing_},
          {"shifts", shifts_},   {"rest", rest(epsilon)}, {"terms", terms(epsilon)}};
}

}  // namespace ghostshard::accountant::receipt
