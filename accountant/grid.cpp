#include "accountant/grid.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <sstream>
#include <unsupported/Eigen/FFT>

#include "accountant/contour_line.h"
#include "accountant/pld_cells.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kWantedDigits = 27;
constexpr double kTolerance = 4e-5;  // in epsilon, of either side
constexpr size_t kFewestPoints = size_t{1} << 15;
constexpr size_t kMostPoints = size_t{1} << 21;

struct Shape {
  GridShape grid;
  int64_t start;  // the window holds losses start·h, …, (start + N - 1)·h
  std::vector<double> log_scales;
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
      grid.log_scale = shape.log_scales[i];
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
      rounding_ += count * transform * std::sqrt(squares);
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
      // e^(-c·loss) relative to the window's start; what was shifted was not tilted by the shift.
      const double weight = value * std::exp(-c_ * h_ * static_cast<double>(j));
      suffix_[j] = suffix_[j + 1] + weight;
      suffix_tilted_[j] = weight + one_step * suffix_tilted_[j + 1];  // relative to its own loss: nothing overflows
    }
    // density[k] carries e^(c·k·h): undo it with the unshifted index.
    log_base_ = log_scale_ - c_ * h_ * (static_cast<double>(shape.start) - whole);
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

std::optional<Shape> shape_for(Direction direction, const std::vector<ComposedRelease>& phases, double saddle,
                               double epsilon, double log_delta, bool fixed_epsilon) {
  const auto choice = choose_line(direction, phases, saddle, epsilon, log_delta, 0, kWantedDigits);
  if (!choice) return std::nullopt;
  Shape shape;
  double count = 0;
  for (const ComposedRelease& phase : phases) {
    count += phase.count;
    shape.log_scales.push_back(real_moment(direction, phase.release, choice->c).log_m);
  }
  const double margin = fixed_epsilon ? 0 : 12 / choice->c;
  const double period = choice->period + margin;
  // Connecting dots adds up to h²/4 to a loss' variance, and so c·count·h²/8 to epsilon.
  const double wanted = std::sqrt(8 * kTolerance / (choice->c * count));
  size_t n = kFewestPoints;
  while (n < kMostPoints && period / static_cast<double>(n) > wanted) n *= 2;
  shape.grid.n = n;
  shape.grid.h = period / static_cast<double>(n);
  shape.grid.c = choice->c;
  shape.grid.reach = std::sqrt(2 * (std::log(count) + 25 - log_delta)) + 1;
  shape.start = static_cast<int64_t>(std::floor((epsilon - margin) / shape.grid.h)) - 2;
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

std::optional<DirectionBound> grid_epsilon(Direction direction, const std::vector<ComposedRelease>& phases,
                                           Delta delta) {
  const double log_delta = std::log(delta.value());
  auto saddle = saddle_of_delta(direction, phases, log_delta);
  if (!saddle) return std::nullopt;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto shape = shape_for(direction, phases, saddle->c, saddle->epsilon, log_delta, false);
    if (!shape) return std::nullopt;
    const Side upper(direction, phases, *shape, true);
    const double h = shape->grid.h;
    const double first = std::max(0.0, (static_cast<double>(shape->start) + 2) * h);
    const double last = (static_cast<double>(shape->start) + static_cast<double>(shape->grid.n) - 4) * h;
    const auto too_small = [&](double epsilon) { return !(upper.delta(epsilon) <= delta.value()); };
    if (!(last > first) || too_small(last)) return std::nullopt;
    DirectionBound bound{0, 0, 0, describe(*shape)};
    if (!too_small(first)) {
      if (first == 0) return bound;
      saddle->epsilon = std::max(0.0, first - 12 / shape->grid.c);  // it lies further to the left
      continue;
    }
    bound.upper = bisect(first, last, too_small).second;
    const Side lower(direction, phases, *shape, false);
    const auto holds = [&](double epsilon) {
      return lower.delta(epsilon) - alias(upper, shape->grid.c, epsilon) >= delta.value();
    };
    if (holds(first)) bound.lower = std::min(bisect(first, bound.upper, holds).first, bound.upper);
    bound.estimate = bound.lower + (bound.upper - bound.lower) / 2;
    return bound;
  }
  return std::nullopt;
}

std::optional<DirectionBound> grid_delta(Direction direction, const std::vector<ComposedRelease>& phases,
                                         double epsilon) {
  const auto saddle = saddle_of_epsilon(direction, phases, epsilon);
  if (!saddle) return std::nullopt;
  const double log_delta = std::min(0.0, chernoff_log_delta(direction, phases, *saddle, epsilon)) - 3;
  const auto shape = shape_for(direction, phases, *saddle, epsilon, log_delta, true);
  if (!shape) return std::nullopt;
  const Side upper(direction, phases, *shape, true);
  const Side lower(direction, phases, *shape, false);
  DirectionBound bound{0, 0, 1, describe(*shape)};
  bound.upper = std::min(1.0, upper.delta(epsilon));
  bound.lower = std::clamp(lower.delta(epsilon) - alias(upper, shape->grid.c, epsilon), 0.0, bound.upper);
  bound.estimate = bound.lower + (bound.upper - bound.lower) / 2;
  return bound;
}

}  // namespace ghostshard::accountant
