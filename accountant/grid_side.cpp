#include "accountant/grid_side.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unsupported/Eigen/FFT>

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Eigen::FFT<double> transforms() {
  Eigen::FFT<double> fft;
  fft.SetFlag(Eigen::FFT<double>::HalfSpectrum);
  return fft;
}

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

CircularPower::CircularPower(size_t n)
    : transform_(4 * kRounding * std::log2(static_cast<double>(n))),  // 7u, rounded up, per level
      log_modulus_(n / 2 + 1, 0),
      relative_(n / 2 + 1, 0),
      log_spectrum_(n / 2 + 1, 0) {}

void CircularPower::add(const TiltedCells& cells, double count) {
  double sum = 0;
  for (const double mass : cells.mass) sum += mass;  // none is negative
  const double error = transform_ * sum * 1.01 + cells.tilt_rounding;
  rounding_ += count * cells.rounding;
  std::vector<Complex> spectrum;
  transforms().fwd(spectrum, cells.mass);
  for (size_t k = 0; k < log_spectrum_.size(); ++k) {
    const Complex log_value = spectrum[k] == 0.0 ? Complex(-1000) : std::log(spectrum[k]);
    const double most = std::exp(log_value.real()) + error;
    log_modulus_[k] += count * std::log(most);
    relative_[k] += count * error / most;
    log_spectrum_[k] += count * log_value;
  }
}

CircularPower::Density CircularPower::density() && {
  const size_t n = 2 * (log_spectrum_.size() - 1);
  // A spectrum may exceed 1 a little: its masses were rounded up. rounding_ scales with it.
  rounding_ *= std::exp(std::max(0.0, log_modulus_[0]));
  double squares = 0;
  for (size_t k = 0; k < log_spectrum_.size(); ++k) {
    Complex& value = log_spectrum_[k];
    const double size = std::abs(value);
    value = std::exp(value);
    const double error = std::exp(log_modulus_[k]) * relative_[k] * 1.01 + std::abs(value) * kRounding * (8 + 4 * size);
    squares += 2 * error * error;
  }
  rounding_ += std::sqrt(squares / static_cast<double>(n));
  Density density{std::vector<double>(n), 0};
  transforms().inv(density.mass, log_spectrum_);
  density.rounding = rounding_ + transform_ * norm(density.mass);
  return density;
}

std::vector<Piece> pieces_of_phases(Direction direction, const std::vector<ComposedRelease>& phases, const Shape& shape,
                                    bool less_private) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < phases.size(); ++i) {
    GridShape grid = shape.grid;
    grid.log_scale = shape.phases[i].log_scale;
    grid.low = shape.phases[i].low;
    grid.high = shape.phases[i].high;
    pieces.push_back({less_private ? less_private_cells(direction, phases[i].release, grid)
                                   : more_private_cells(direction, phases[i].release, grid),
                      phases[i].count, grid.log_scale});
  }
  return pieces;
}

Side::Side(const std::vector<Piece>& pieces, const Shape& shape, bool less_private)
    : h_(shape.grid.h), c_(shape.grid.c), less_private_(less_private) {
  const size_t n = shape.grid.n;
  CircularPower power(n);
  double shift = 0;
  for (const auto& [cells, count, log_scale] : pieces) {
    power.add(cells, count);
    log_scale_ += count * log_scale;
    shift += count * cells.shift;
    dropped_ += count * cells.dropped;
    log_total_ += count * std::max(0.0, cells.log_total);
    for (size_t j = 0; j < cells.moments.size(); ++j) {
      if (moments_.size() <= j) moments_.emplace_back(cells.moments[j].first, 0.0);
      moments_[j].second += count * cells.moments[j].second;
    }
  }
  const CircularPower::Density density = std::move(power).density();
  rounding_ = density.rounding;

  // The grid is (k + shift)·h; whole steps go into the index.
  const double whole = std::floor(shift);
  origin_ = (shift - whole) * h_;
  start_ = shape.start;
  const double one_step = std::exp(-h_);
  suffix_.assign(n + 1, 0);
  suffix_tilted_.assign(n + 1, 0);
  for (size_t j = n; j-- > 0;) {
    const int64_t k = shape.start + static_cast<int64_t>(j) - static_cast<int64_t>(whole);
    const double value = density.mass[static_cast<size_t>(k) & (n - 1)];
    // e^(-c·loss) relative to the window's start.
    const double weight = value * std::exp(-c_ * h_ * static_cast<double>(j));
    suffix_[j] = suffix_[j + 1] + weight;
    suffix_tilted_[j] = weight + one_step * suffix_tilted_[j + 1];  // relative to its own loss: nothing overflows
  }
  log_base_ = log_scale_ - c_ * (h_ * static_cast<double>(shape.start) + origin_);
  period_ = h_ * static_cast<double>(n);
}

double Side::delta(double epsilon) const {
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

double alias(const Side& upper, const Side& lower, double c, double epsilon) {
  // Where the more private one was measured itself, by its own moments.
  const auto& moments = lower.moments().empty() ? upper.moments() : lower.moments();
  const double period = upper.period();
  double right = kInfinity;
  for (const auto& [other, k] : moments) {
    const double first = std::exp(k - other * epsilon - (other - c) * period);
    right = std::min(right, first / -std::expm1(-(other - c) * period));
  }
  return right + std::exp(lower.log_total() - c * period) / -std::expm1(-c * period);
}

}  // namespace ghostshard::accountant
