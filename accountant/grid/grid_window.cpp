#include "accountant/grid/grid_window.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "accountant/grid/outcomes.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMostCells = 4;  // beside the number of grid points
constexpr double kMostExcess = 10;
constexpr double kWantedDigits = 15;  // the losses outside the window hold e^-15 of delta
constexpr double kRareDigits = 14;
constexpr size_t kFewestPoints = size_t{1} << 12;

double log_kappa(double c) { return -c * std::log1p(1 / c) - std::log1p(c); }

double normal_tail(double z) { return 0.5 * std::erfc(z / std::sqrt(2.0)); }

Sketch sketch(Direction direction, const ComposedRelease& phase, double log_rare) {
  const double q = phase.release.q;
  const double sigma = phase.release.sigma;
  const bool remove = direction == Direction::kRemove;
  const double rare = std::exp(std::max(log_rare, -650.0));
  const auto beyond = [&](double x) {  // probability of larger losses
    return remove ? (1 - q) * normal_tail(x / sigma) + q * normal_tail((x - 1) / sigma) : normal_tail(x / sigma);
  };
  double near = -1;
  double far = 1 + 39 * sigma;
  for (int i = 0; i < 60; ++i) {
    const double middle = near + (far - near) / 2;
    (beyond(middle) > rare ? near : far) = middle;
  }
  // To the other side: outcomes left out there are merged into the least loss, and need fewer digits.
  const double other = 9 * sigma;
  const double center = q == 1 ? 1 : 0;  // of the outcomes, when a unit is removed; 1 less when one is added
  Sketch found{remove ? center - other : -far,
               remove ? std::max(far, 1e-3 * sigma) : 1 - center + other,
               phase.count,
               0,
               {},
               {}};
  const double wanted = (found.high - found.low) / std::min(sigma / 8, std::max(sigma * sigma / 3, sigma / 60));
  const auto nodes = static_cast<int>(std::clamp(wanted, 100.0, 3000.0));
  const double step = (found.high - found.low) / nodes;
  double total = 0;
  for (int i = 0; i <= nodes; ++i) {
    const double x = found.low + step * i;
    const double at_zero = std::exp(-0.5 * (x / sigma) * (x / sigma));
    const double at_one = std::exp(-0.5 * ((x - 1) / sigma) * ((x - 1) / sigma));
    const double u = (2 * x - 1) / (2 * sigma * sigma);
    const double l = log_mixture(q, u);
    found.mass.push_back(remove ? (1 - q) * at_zero + q * at_one : at_zero);
    found.loss.push_back(remove ? l : -l);
    total += found.mass.back();
  }
  for (double& mass : found.mass) mass /= total;
  return found;
}

// A table's losses, neighbours put together, without those at the far end that are as rare as that.
Sketch sketch_of_table(const LossAtoms& atoms, double count, double log_rare) {
  constexpr size_t kMostPoints = 1500;
  Sketch found{atoms.loss.empty() ? 0 : atoms.loss.front(), 0, count, 0, {}, {}, true};
  const double rare = std::exp(std::max(log_rare, -650.0));
  size_t end = atoms.loss.size();
  double beyond = 0;
  while (end > 1 && (beyond += atoms.mass[end - 1]) <= rare) --end;
  found.high = end > 0 ? atoms.loss[end - 1] : 0;
  const size_t together = end / kMostPoints + 1;
  double total = 0;
  for (size_t i = 0; i < end; i += together) {
    double mass = 0;
    double moment = 0;
    for (size_t j = i; j < std::min(end, i + together); ++j) {
      mass += atoms.mass[j];
      moment += atoms.mass[j] * atoms.loss[j];
    }
    if (!(mass > 0)) continue;
    found.mass.push_back(mass);
    found.loss.push_back(moment / mass);
    total += mass;
  }
  for (double& mass : found.mass) mass /= total;
  if (found.mass.empty()) {
    found.mass = {1};
    found.loss = {0};
  }
  return found;
}

}  // namespace

Sketches::Sketches(Direction direction, const std::vector<ComposedRelease>& phases, double log_delta)
    : direction_(direction) {
  double count = 0;
  for (const ComposedRelease& phase : phases) count += phase.count;
  // A millionth of delta is all that the losses left out may have together.
  const double log_rare = log_delta - std::log(count) - kRareDigits;
  for (const ComposedRelease& phase : phases)
    all_.push_back(phase.is_table() ? sketch_of_table(phase.atoms(direction, true), phase.count, log_rare)
                                    : sketch(direction, phase, log_rare));
}

RealMoment Sketches::at(size_t phase, double c) const {
  const Sketch& one = all_[phase];
  const double top = c * std::max(one.loss.front(), one.loss.back());
  if (top > 30) {
    double m = 0;
    double m1 = 0;
    double m2 = 0;
    for (size_t i = 0; i < one.mass.size(); ++i) {
      const double term = one.mass[i] * std::exp(c * one.loss[i] - top);
      m += term;
      m1 += term * one.loss[i];
      m2 += term * one.loss[i] * one.loss[i];
    }
    return {one.log_total + top + std::log(m), m1 / m, std::max(0.0, m2 / m - m1 / m * (m1 / m))};
  }
  double m = 0;
  double m1 = 0;
  double m2 = 0;
  for (size_t i = 0; i < one.mass.size(); ++i) {
    const double growth = std::expm1(c * one.loss[i]);
    m += one.mass[i] * growth;
    m1 += one.mass[i] * (1 + growth) * one.loss[i];
    m2 += one.mass[i] * (1 + growth) * one.loss[i] * one.loss[i];
  }
  return {one.log_total + std::log1p(m), m1 / (1 + m), std::max(0.0, m2 / (1 + m) - m1 / (1 + m) * (m1 / (1 + m)))};
}

RealMoment Sketches::at(double c) const {
  RealMoment sum{0, 0, 0};
  for (size_t i = 0; i < all_.size(); ++i) {
    const RealMoment one = at(i, c);
    sum.log_m += all_[i].count * one.log_m;
    sum.mean += all_[i].count * one.mean;
    sum.variance += all_[i].count * one.variance;
  }
  return sum;
}

std::pair<double, double> Sketches::outcomes_above(size_t phase, double loss) const {
  const Sketch& one = all_[phase];
  if (one.table) return {one.low, one.high};
  const double step = (one.high - one.low) / static_cast<double>(one.loss.size() - 1);
  double low = one.low;
  double high = one.high;
  const bool rising = one.loss.front() < one.loss.back();
  for (size_t i = 0; i + 2 < one.loss.size(); ++i) {
    if (!(one.loss[rising ? i + 1 : one.loss.size() - 2 - i] < loss)) break;
    (rising ? low : high) += rising ? step : -step;
  }
  return {low, high};
}

Sketches Sketches::limited(const std::vector<double>& splits, bool rare) const {
  Sketches found = *this;
  for (size_t i = 0; i < all_.size(); ++i) {
    const Sketch& whole = all_[i];
    Sketch& part = found.all_[i];
    part.mass.clear();
    part.loss.clear();
    double total = 0;
    for (size_t j = 0; j < whole.mass.size(); ++j) {
      if ((unbounded(whole.loss[j]) >= splits[i]) != rare) continue;
      part.mass.push_back(whole.mass[j]);
      part.loss.push_back(whole.loss[j]);
      total += whole.mass[j];
    }
    if (part.mass.empty()) {
      part.mass = {1};
      part.loss = {0};
      part.count = 0;
      continue;
    }
    for (double& mass : part.mass) mass /= total;
    part.log_total += std::log(std::max(total, 1e-300));
  }
  return found;
}

double Sketches::range_above(size_t phase, double loss) const {
  const auto& losses = all_[phase].loss;
  const double range = std::abs(losses.front() - losses.back());
  return std::min(range, std::max(losses.front(), losses.back()) - loss);
}

double Sketches::largest_range() const {
  double range = 0;
  for (const Sketch& one : all_) range = std::max(range, std::abs(one.loss.front() - one.loss.back()));
  return range;
}

// visit(size of a loss, how often it comes under the tilt c)
template <class Visitor>
void Sketches::for_each_loss(double c, const Visitor& visit) const {
  for (size_t phase = 0; phase < all_.size(); ++phase) {
    const Sketch& one = all_[phase];
    // Of a part, relative to the whole, whose moment is near 1.
    const bool part = one.log_total < -1e-12;
    const double log_scale = part ? -one.log_total : c > 0 ? at(phase, c).log_m : 0;
    for (size_t i = 0; i < one.mass.size(); ++i)
      visit(std::abs(one.loss[i]), one.count * one.mass[i] * std::exp(std::min(c * one.loss[i] - log_scale, 300.0)));
  }
}

double Sketches::added_variance(double h, double c) const {
  double sum = 0;
  for_each_loss(c, [&](double size, double weight) { sum += weight * std::min(size * h, h * h / 6); });
  return sum;
}

AddedVariance::AddedVariance(const Sketches& sketches, double c) {
  sketches.for_each_loss(c, [&](double size, double weight) { points_.push_back({size, weight}); });
  std::sort(points_.begin(), points_.end(), [](const Point& one, const Point& other) { return one.size < other.size; });
  of_small_.assign(points_.size() + 1, 0);
  of_large_.assign(points_.size() + 1, 0);
  for (size_t i = 0; i < points_.size(); ++i) of_small_[i + 1] = of_small_[i] + points_[i].size * points_[i].weight;
  for (size_t i = points_.size(); i-- > 0;) of_large_[i] = of_large_[i + 1] + points_[i].weight;
}

double AddedVariance::at(double h) const {
  const auto from = std::partition_point(points_.begin(), points_.end(),
                                         [&](const Point& point) { return point.size * h < h * h / 6; });
  const auto i = static_cast<size_t>(from - points_.begin());
  return h * of_small_[i] + h * h / 6 * of_large_[i];
}

Guess guess_epsilon(const Sketches& sketches, double log_delta) {
  const auto epsilon_at = [](double c, const RealMoment& m) { return m.mean - 1 / c - 1 / (1 + c); };
  const double c = sketches.root([&](double at, const RealMoment& m) {
    const double width = 2 * std::numbers::pi * (m.variance + 1 / (at * at) + 1 / ((1 + at) * (1 + at)));
    return log_delta - (m.log_m - at * epsilon_at(at, m) - std::log(at) - std::log1p(at) - 0.5 * std::log(width));
  });
  const RealMoment moment = sketches.at(c);
  const double chernoff = (moment.log_m + log_kappa(c) - log_delta) / c;
  const double epsilon = std::clamp(epsilon_at(c, moment), chernoff - 15 / c, chernoff);
  if (epsilon > 0) return {c, epsilon};
  return {sketches.saddle_of(0), 0};
}

namespace {

// Where the window must end, and how long it must be, so that losses outside are negligible with this tilt.
struct Reach {
  double end = kInfinity, period = kInfinity;
};
Reach reach_of(const Sketches& sketches, double c, double epsilon, double wanted) {
  Reach reach;
  for (const double share : kMomentShares) {
    const double other = c * share;
    const double k = sketches.at(other).log_m;
    reach.end = std::min(reach.end, (k - wanted) / other);
    reach.period = std::min(reach.period, (k - other * epsilon - wanted) / (other - c));
  }
  reach.period = std::max(reach.period, -wanted / c);
  return reach;
}

}  // namespace

std::optional<Shape> shape_for(const Sketches& sketches, double saddle, double first, double epsilon, double log_delta,
                               double tolerance, size_t most_points, size_t least_points) {
  const double wanted = log_delta - kWantedDigits;
  // The tilt with the shortest window, as long as the tilted sum does not exceed delta by more digits than can be lost.
  double c = saddle;
  double period = kInfinity;
  double least_excess = kInfinity;
  for (const double share : {1.0, 1.08, 0.92, 0.84, 0.76, 0.68, 0.6, 0.5, 0.4, 0.3}) {
    const double candidate = saddle * share;
    const double excess =
        sketches.at(candidate).log_m - candidate * epsilon - std::log(candidate) - std::log1p(candidate) - log_delta;
    least_excess = std::min(least_excess, excess);
    if (!(excess < std::max(least_excess + 1, kMostExcess))) continue;
    const Reach reach = reach_of(sketches, candidate, epsilon, wanted);
    const double needed = std::max(reach.period, reach.end - first);
    if (needed < period) {
      period = needed;
      c = candidate;
    }
  }
  if (!(period < kInfinity) || !(period > 0)) return std::nullopt;
  size_t n = std::clamp(least_points, kFewestPoints, most_points);
  while (n < most_points && sketches.added_by_mesh(period / static_cast<double>(n), c) > tolerance) n *= 2;
  Shape shape;
  shape.grid = {
      .h = period / static_cast<double>(n), .n = n, .c = c, .log_scale = 0, .low = 0, .high = 0, .epsilon = epsilon};
  for (size_t i = 0; i < sketches.all().size(); ++i) {
    // Losses so low that the others would have to make up for a whole window need not be told apart.
    const auto [low, high] = sketches.outcomes_above(i, -period);
    shape.phases.push_back({sketches.at(i, c).log_m, low, high});
    if (!(sketches.range_above(i, -period) / shape.grid.h < kMostCells * static_cast<double>(most_points)))
      return std::nullopt;
  }
  const double start = std::floor(first / shape.grid.h) - 2;
  if (!(std::abs(start) < 1e15)) return std::nullopt;
  shape.start = static_cast<int64_t>(start);
  return shape;
}

}  // namespace ghostshard::accountant
