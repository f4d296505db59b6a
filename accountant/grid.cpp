#include "accountant/grid.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <sstream>
#include <unsupported/Eigen/FFT>

#include "accountant/contour_line.h"
#include "accountant/pld_cells.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMostCells = 4;  // beside the number of grid points
constexpr double kMostExcess = 10;
constexpr double kWantedDigits = 20;  // what lies outside the window is e^-20 of delta
constexpr size_t kFewestPoints = size_t{1} << 12;

constexpr size_t kSmallPoints = size_t{1} << 15;
constexpr size_t kMostPoints = size_t{1} << 21;
// What the mesh may add to epsilon: absolute, but no more than this share of it.
constexpr double kTolerance = 1e-5;
constexpr double kRelativeTolerance = 1e-3;
constexpr double kLeastTolerance = 1e-9;
constexpr double kDeltaTolerance = 1e-5;  // relative, of delta

double log_kappa(double c) { return -c * std::log1p(1 / c) - std::log1p(c); }

struct Shape {
  GridShape grid;
  int64_t start;  // the window holds losses start·h, …, (start + N - 1)·h
  struct Phase {
    double log_scale, low, high;
  };
  std::vector<Phase> phases;
};

// One run: what lies in the window, as suffix sums from which delta is read off.
class Side {
 public:
  Side(Direction direction, const std::vector<ComposedRelease>& phases, const Shape& shape, bool less_private)
      : h_(shape.grid.h), c_(shape.grid.c), less_private_(less_private) {
    const size_t n = shape.grid.n;
    const double log_n = std::log2(static_cast<double>(n));
    const double transform = 4 * kRounding * log_n;  // 7u, rounded up, per level
    Eigen::FFT<double> fft;
    fft.SetFlag(Eigen::FFT<double>::HalfSpectrum);
    std::vector<Complex> log_spectrum(n / 2 + 1, 0);
    std::vector<Complex> spectrum;
    double shift = 0;
    for (size_t i = 0; i < phases.size(); ++i) {
      GridShape grid = shape.grid;
      grid.log_scale = shape.phases[i].log_scale;
      grid.low = shape.phases[i].low;
      grid.high = shape.phases[i].high;
      const double count = phases[i].count;
      TiltedCells cells = less_private ? less_private_cells(direction, phases[i].release, grid)
                                       : more_private_cells(direction, phases[i].release, grid);
      log_scale_ += count * grid.log_scale;
      shift += count * cells.shift;
      dropped_ += count * cells.dropped;
      for (size_t j = 0; j < cells.moments.size(); ++j) {
        if (moments_.size() <= j) moments_.emplace_back(cells.moments[j].first, 0.0);
        moments_[j].second += count * cells.moments[j].second;
      }
      double squares = 0;
      for (const double mass : cells.mass) squares += mass * mass;
      rounding_ += count * (transform * std::sqrt(squares) + cells.rounding);
      fft.fwd(spectrum, cells.mass);
      for (size_t k = 0; k < log_spectrum.size(); ++k)
        log_spectrum[k] += count * (spectrum[k] == 0.0 ? Complex(-1000) : std::log(spectrum[k]));
    }
    // A spectrum may exceed 1 a little: its masses were rounded up. rounding_ scales with it.
    const double excess = std::exp(std::max(0.0, log_spectrum[0].real()));
    rounding_ *= excess;
    double of_power = 0;
    for (size_t k = 0; k < log_spectrum.size(); ++k) {
      const double size = std::abs(log_spectrum[k]);
      spectrum[k] = std::exp(log_spectrum[k]);
      const double error = std::abs(spectrum[k]) * kRounding * (8 + 4 * size);
      of_power += 2 * error * error;
    }
    rounding_ += std::sqrt(of_power / static_cast<double>(n));
    std::vector<double> density(n);
    fft.inv(density, spectrum);
    double squares = 0;
    for (const double value : density) squares += value * value;
    rounding_ += transform * std::sqrt(squares);

    // The grid is (k + shift)·h; whole steps go into the index.
    const double whole = std::floor(shift);
    origin_ = (shift - whole) * h_;
    start_ = shape.start;
    const double one_step = std::exp(-h_);
    suffix_.assign(n + 1, 0);
    suffix_tilted_.assign(n + 1, 0);
    for (size_t j = n; j-- > 0;) {
      const int64_t k = shape.start + static_cast<int64_t>(j) - static_cast<int64_t>(whole);
      const double value = density[static_cast<size_t>(k) & (n - 1)];
      // e^(-c·loss) relative to the window's start.
      const double weight = value * std::exp(-c_ * h_ * static_cast<double>(j));
      suffix_[j] = suffix_[j + 1] + weight;
      suffix_tilted_[j] = weight + one_step * suffix_tilted_[j + 1];  // relative to its own loss: nothing overflows
    }
    log_base_ = log_scale_ - c_ * (h_ * static_cast<double>(shape.start) + origin_);
    period_ = h_ * static_cast<double>(n);
  }

  // A bound on delta, from above or below.
  double delta(double epsilon) const {
    const double base = static_cast<double>(start_) * h_ + origin_;
    if (epsilon < base) return less_private_ ? 1 : -1;
    const auto first = static_cast<size_t>(std::min(std::ceil((epsilon - base) / h_), 1e15));
    if (first + 1 >= suffix_.size()) return less_private_ ? 1 : -1;
    const double sum =
        suffix_[first] - std::exp(epsilon - base - h_ * static_cast<double>(first)) * suffix_tilted_[first];
    const double adding = kRounding * 64 * suffix_[first];
    // 2-norm of the weights e^(-cs)(1 - e^-s), s = 0, h, …
    const double weights = std::sqrt((1 / (2 * c_) - 2 / (2 * c_ + 1) + 1 / (2 * c_ + 2)) / h_ + 1);
    const double decay = std::exp(-c_ * h_ * static_cast<double>(first));
    const double error = adding + rounding_ * decay * weights * 1.01;
    const double scale = std::exp(log_base_);
    if (less_private_) {
      const double end = base + period_;
      double beyond = 1;
      for (const auto& [c, k] : moments_) beyond = std::min(beyond, std::exp(k - c * end));
      return scale * (sum + error) * (1 + 1e-12) + beyond + dropped_;
    }
    return scale * (sum - error) * (1 - 1e-12);
  }

  const std::vector<std::pair<double, double>>& moments() const { return moments_; }
  double period() const { return period_; }

 private:
  double h_, c_;
  bool less_private_;
  double log_scale_ = 0, dropped_ = 0, rounding_ = 0, log_base_ = 0, origin_ = 0, period_ = 0;
  int64_t start_ = 0;
  std::vector<double> suffix_, suffix_tilted_;
  std::vector<std::pair<double, double>> moments_;
};

// What circular transforms may have added to the more private run: see contour_line.h, the alias.
double alias(const Side& upper, double c, double epsilon) {
  const double period = upper.period();
  double right = kInfinity;
  for (const auto& [other, k] : upper.moments()) {
    const double first = std::exp(k - other * epsilon - (other - c) * period);
    right = std::min(right, first / -std::expm1(-(other - c) * period));
  }
  return right + std::exp(-c * period) / -std::expm1(-c * period);
}

// ---------------------------------------------------------------------------------------------------------------------
// Where to look: nothing here is part of a proof

double normal_tail(double z) { return 0.5 * std::erfc(z / std::sqrt(2.0)); }

// One release's losses at some hundred outcomes, without those so rare that they do not count at this delta. Without
// them the moments stay moderate even where rare large losses would rule them: with a small rate and few steps the
// best tilt is orders of magnitude larger than for the whole distribution, and the window as much shorter.
struct Sketch {
  double low, high;  // outcomes
  double count;
  std::vector<double> mass, loss;
};

Sketch sketch(Direction direction, const ComposedRelease& phase, double log_rare) {
  const auto [q, sigma] = phase.release;
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
  // To the other side: what is left out there is merged into the least loss, and needs the fewer digits.
  const double other = 9 * sigma;
  Sketch found{remove ? -other : -far, remove ? std::max(far, 1e-3 * sigma) : 1 + other, phase.count, {}, {}};
  const double wanted = (found.high - found.low) / std::min(sigma / 8, std::max(sigma * sigma / 3, sigma / 60));
  const auto nodes = static_cast<int>(std::clamp(wanted, 100.0, 3000.0));
  const double step = (found.high - found.low) / nodes;
  double total = 0;
  for (int i = 0; i <= nodes; ++i) {
    const double x = found.low + step * i;
    const double at_zero = std::exp(-0.5 * (x / sigma) * (x / sigma));
    const double at_one = std::exp(-0.5 * ((x - 1) / sigma) * ((x - 1) / sigma));
    const double u = (2 * x - 1) / (2 * sigma * sigma);
    const double l = u > 300 ? std::log(q) + u : std::log1p(q * std::expm1(u));
    found.mass.push_back(remove ? (1 - q) * at_zero + q * at_one : at_zero);
    found.loss.push_back(remove ? l : -l);
    total += found.mass.back();
  }
  for (double& mass : found.mass) mass /= total;
  return found;
}

class Sketches {
 public:
  Sketches(Direction direction, const std::vector<ComposedRelease>& phases, double log_delta) {
    double count = 0;
    for (const ComposedRelease& phase : phases) count += phase.count;
    // A millionth of delta is all that the losses left out may have together.
    const double log_rare = log_delta - std::log(count) - kRareDigits;
    for (const ComposedRelease& phase : phases) all_.push_back(sketch(direction, phase, log_rare));
  }

  const std::vector<Sketch>& all() const { return all_; }

  RealMoment at(size_t phase, double c) const {
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
      return {top + std::log(m), m1 / m, std::max(0.0, m2 / m - m1 / m * (m1 / m))};
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
    return {std::log1p(m), m1 / (1 + m), std::max(0.0, m2 / (1 + m) - m1 / (1 + m) * (m1 / (1 + m)))};
  }

  RealMoment at(double c) const {
    RealMoment sum{0, 0, 0};
    for (size_t i = 0; i < all_.size(); ++i) {
      const RealMoment one = at(i, c);
      sum.log_m += all_[i].count * one.log_m;
      sum.mean += all_[i].count * one.mean;
      sum.variance += all_[i].count * one.variance;
    }
    return sum;
  }

  // The outcomes of this phase without those at the far end whose loss is below this.
  std::pair<double, double> outcomes_above(size_t phase, double loss) const {
    const Sketch& one = all_[phase];
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

  // From the least to the largest loss of one release.
  double largest_range() const {
    double range = 0;
    for (const Sketch& one : all_) range = std::max(range, std::abs(one.loss.front() - one.loss.back()));
    return range;
  }

  // By how much connecting dots with this mesh raises the variance of the sum.
  double added_variance(double h) const {
    double sum = 0;
    for (const Sketch& one : all_)
      for (size_t i = 0; i < one.mass.size(); ++i)
        sum += one.count * one.mass[i] * std::min(std::abs(one.loss[i]) * h, h * h / 4);
    return sum;
  }

  // The c at which rising(c, moment at c) becomes positive.
  template <class Rising>
  double root(const Rising& rising) const {
    double low = 1e-9;
    double high = 1e12;
    for (int i = 0; i < 80 && high > low * 1.005; ++i) {
      const double middle = std::sqrt(low * high);
      (rising(middle, at(middle)) < 0 ? low : high) = middle;
    }
    return std::sqrt(low * high);
  }
  double saddle_of(double epsilon) const {
    return root([&](double c, const RealMoment& m) { return m.mean - 1 / c - 1 / (1 + c) - epsilon; });
  }

 private:
  static constexpr double kRareDigits = 14;
  std::vector<Sketch> all_;
};

// The epsilon at which delta is about this, by the saddle-point approximation kept near Chernoff's bound.
struct Guess {
  double c, epsilon;
};
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

// Where the window must end, and how long it must be, for what lies outside to be negligible with this tilt.
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

// A window from `first` on in which delta at `epsilon`, about e^log_delta, can be read off. saddle: of that epsilon.
// tolerance: of epsilon.
std::optional<Shape> shape_for(const Sketches& sketches, double saddle, double first, double epsilon, double log_delta,
                               double tolerance, size_t most_points) {
  const double wanted = log_delta - kWantedDigits;
  // The tilt with the shortest window, as long as what is tilted does not exceed delta by more digits than can be lost.
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
  size_t n = kFewestPoints;
  while (n < most_points && c / 2 * sketches.added_variance(period / static_cast<double>(n)) > tolerance) n *= 2;
  Shape shape;
  shape.grid = {.h = period / static_cast<double>(n), .n = n, .c = c, .log_scale = 0, .low = 0, .high = 0};
  for (size_t i = 0; i < sketches.all().size(); ++i) {
    // Losses so low that the others would have to make up for a whole window need not be told apart.
    const auto [low, high] = sketches.outcomes_above(i, -period);
    shape.phases.push_back({sketches.at(i, c).log_m, low, high});
  }
  const double start = std::floor(first / shape.grid.h) - 2;
  if (!(std::abs(start) < 1e15)) return std::nullopt;
  if (!(sketches.largest_range() / shape.grid.h < kMostCells * static_cast<double>(most_points))) return std::nullopt;
  shape.start = static_cast<int64_t>(start);
  return shape;
}

std::string describe(const Shape& shape) {
  std::ostringstream text;
  text << "grid of " << shape.grid.n << " losses, mesh " << shape.grid.h << ", tilt " << shape.grid.c;
  return text.str();
}

// Where a falling function crosses `level` within [low, high], from the side that keeps `holds`.
template <class Holds>
std::pair<double, double> bisect(double low, double high, Holds too_small) {
  for (int i = 0; i < 80; ++i) {
    const double middle = low + (high - low) / 2;
    if (!(middle > low && middle < high)) break;
    (too_small(middle) ? low : high) = middle;
  }
  return {low, high};
}

}  // namespace

std::optional<DirectionBound> grid_epsilon(Direction direction, const std::vector<ComposedRelease>& phases, Delta delta,
                                           GridSize size) {
  const double log_delta = std::log(delta.value());
  const Sketches sketches(direction, phases, log_delta);
  Guess guess = guess_epsilon(sketches, log_delta);
  const size_t most = size == GridSize::kSmall ? kSmallPoints : kMostPoints;
  double margin = 15 / guess.c;
  bool located = false;  // by a coarse mesh, whatever the first guess was worth
  double tolerance = 0;
  std::optional<DirectionBound> before;
  for (int attempt = 0; attempt < 12; ++attempt) {
    const double wanted = std::min(kTolerance, kRelativeTolerance * guess.epsilon) + kLeastTolerance;
    if (!located) tolerance = std::max(0.5 / guess.c, wanted);
    const auto shape =
        shape_for(sketches, guess.c, std::max(0.0, guess.epsilon - margin), guess.epsilon, log_delta, tolerance, most);
    if (!shape) return std::nullopt;
    const Side upper(direction, phases, *shape, true);
    const double h = shape->grid.h;
    const double first = std::max(0.0, (static_cast<double>(shape->start) + 2) * h);
    const double last = (static_cast<double>(shape->start) + static_cast<double>(shape->grid.n) - 4) * h;
    const auto too_small = [&](double epsilon) { return !(upper.delta(epsilon) <= delta.value()); };
    if (!(last > first) || too_small(last)) {  // it lies further to the right, or rounding hides it
      guess.epsilon = std::max(2 * guess.epsilon, last);
      guess.c = sketches.saddle_of(guess.epsilon);
      continue;
    }
    DirectionBound bound{0, 0, 0, describe(*shape)};
    if (!too_small(first)) {
      if (first == 0) return bound;
      margin *= 4;  // further to the left
      continue;
    }
    bound.upper = bisect(first, last, too_small).second;
    if (!located) {
      located = true;
      // Where the coarse mesh put it, less what that mesh may have added.
      const double added = std::min(shape->grid.c * sketches.added_variance(h), bound.upper);
      guess.epsilon = bound.upper - added / 2;
      guess.c = sketches.saddle_of(guess.epsilon);
      margin = 8 / guess.c + added + 4 * h;
      tolerance = std::min(kTolerance, kRelativeTolerance * guess.epsilon) + kLeastTolerance;
      continue;
    }
    const Side lower(direction, phases, *shape, false);
    const auto holds = [&](double epsilon) {
      return lower.delta(epsilon) - alias(upper, shape->grid.c, epsilon) >= delta.value();
    };
    // From the right: towards the window's start the alias grows.
    for (double below = 1e-10 * bound.upper + 1e-13; below < 1.1 * bound.upper; below *= 2) {
      const double candidate = std::max(first, bound.upper - below);
      if (holds(candidate)) {
        bound.lower = std::min(bisect(candidate, bound.upper, holds).first, bound.upper);
        break;
      }
      if (candidate == first) break;
    }
    bound.estimate = bound.lower + (bound.upper - bound.lower) / 2;
    const double width = bound.upper - bound.lower;
    if (before) {
      bound.lower = std::max(bound.lower, before->lower);
      bound.upper = std::min(bound.upper, before->upper);
      bound.estimate = std::clamp(bound.estimate, bound.lower, bound.upper);
    }
    // A finer mesh, as long as it is the mesh that decides and not rounding.
    const bool helps = !before || width < 0.6 * (before->upper - before->lower);
    if (width > 4 * wanted && shape->grid.n < most && helps) {
      before = bound;
      tolerance /= 15;  // twice the points, twice
      guess.epsilon = bound.upper;
      margin = 8 / guess.c + width;
      continue;
    }
    return bound;
  }
  return std::nullopt;
}

std::optional<DirectionBound> grid_delta(Direction direction, const std::vector<ComposedRelease>& phases,
                                         double epsilon, GridSize size) {
  // What is rare is so beside delta: a first grid says what that is.
  double log_delta =
      std::min(-1.0, chernoff_log_delta(direction, phases, saddle_of_epsilon(direction, phases, epsilon).value_or(1),
                                        epsilon)) -
      12;
  const size_t most = size == GridSize::kSmall ? kSmallPoints : kMostPoints;
  for (int attempt = 0; attempt < 4; ++attempt) {
    const Sketches sketches(direction, phases, log_delta);
    const double c = sketches.saddle_of(epsilon);
    const bool last = attempt > 0;
    const auto shape = shape_for(sketches, c, epsilon - 4 / c * 1e-3, epsilon, log_delta, kDeltaTolerance / c,
                                 last ? most : kFewestPoints);
    if (!shape) return std::nullopt;
    const Side upper(direction, phases, *shape, true);
    DirectionBound bound{0, 0, 1, describe(*shape)};
    bound.upper = std::min(1.0, upper.delta(epsilon));
    if (!last) {
      log_delta = std::min(std::log(std::max(bound.upper, 1e-300)), 0.0);
      continue;
    }
    const Side lower(direction, phases, *shape, false);
    bound.lower = std::clamp(lower.delta(epsilon) - alias(upper, shape->grid.c, epsilon), 0.0, bound.upper);
    bound.estimate = bound.lower + (bound.upper - bound.lower) / 2;
    return bound;
  }
  return std::nullopt;
}

}  // namespace ghostshard::accountant
