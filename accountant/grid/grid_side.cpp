#include "accountant/grid/grid_side.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "accountant/gaussian/least_double.h"
#include "accountant/gaussian/near_one.h"
#include "accountant/grid/table_cells.h"
#include "accountant/threads/in_parts.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// From e^-this on the product of the heaviest cells is negligible.
constexpr double kLeastApart = 30;
constexpr double kNothing = -700;  // a logarithm
// Cells on either side of the heaviest that are summed up one by one: they hold most of the rest.
constexpr size_t kNear = 8;
constexpr size_t kFrequenciesOfAPart = 4096;
constexpr double kNanosecondsOfOne = 100;

// Rounded up, without hypot's care for the least and the largest numbers: the logarithms and masses below are none.
double modulus_at_most(Complex z) { return std::sqrt(std::norm(z)) * (1 + 4 * kRounding) + 1e-150; }

Complex times(Complex a, Complex b) {  // infinities do not matter
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

// Cells in a circle around the heaviest one, which lies at 0 and takes no part: those near it one by one, the others
// for a transform.
struct AroundHeaviest {
  std::vector<double> far;
  std::array<double, kNear + 1> above{};
  std::array<double, kNear + 1> below{};
  double sum = 0;  // of all of them
  double error;    // of the transform, of roots, products and sums

  // transform: the error of the transform, relative to each mass.
  AroundHeaviest(const TiltedCells& cells, size_t heaviest, double transform)
      : far(cells.mass.size(), 0), error(cells.rounding) {
    const size_t n = cells.mass.size();
    for (size_t j = 1; j < n; ++j) {
      const double mass = cells.mass[(j + heaviest) & (n - 1)];  // none is negative
      const size_t away = std::min(j, n - j);
      sum += mass;
      if (away > kNear) {
        far[j] = mass;
        error += transform * 1.01 * mass;
      } else {
        (j == away ? above : below)[away] = mass;
        error += kRounding * (4 * static_cast<double>(away) + 1) * mass;
      }
    }
  }

  // What the near ones add to the spectrum at this root of unity: those below by Horner's rule, those above turn the
  // other way.
  Complex near(Complex root) const {
    Complex upwards = 0;
    Complex downwards = 0;
    for (size_t j = kNear; j > 0; --j) {
      upwards = times(upwards + below[j], root);
      downwards = times(downwards + above[j], root);
    }
    return upwards + std::conj(downwards);
  }
};

}  // namespace

CircularPower::CircularPower(size_t n)
    : fourier_(n),
      roots_(n),
      transform_(RealTransform::rounding(n)),
      log_modulus_(n / 2 + 1, 0),
      error_(n / 2 + 1, 0),
      size_(n / 2 + 1, 0),
      log_spectrum_(n / 2 + 1, 0) {}

void CircularPower::add(const TiltedCells& cells, double count) {
  const size_t n = cells.mass.size();
  const auto heaviest =
      static_cast<size_t>(std::max_element(cells.mass.begin(), cells.mass.end()) - cells.mass.begin());
  const double a = cells.mass[heaviest];
  const AroundHeaviest around(cells, heaviest, transform_);
  const bool split = around.sum < a / 2;
  // And log(1 + S/a), or a + S.
  const double error = around.error + kRounding * (split ? 4 * around.sum : 4 * (a + around.sum));
  relative_ += count * cells.relative;
  place_ += (static_cast<int64_t>(std::fmod(count, static_cast<double>(n))) * static_cast<int64_t>(heaviest)) &
            static_cast<int64_t>(n - 1);
  const double log_a = std::log(a);
  ++pieces_;
  if (split) {
    log_heaviest_ += count * log_a;
    heaviest_size_ += std::abs(count * log_a);
  } else {
    all_split_ = false;
  }
  fourier_.forward(around.far, spectrum_);
  const auto multiply = [&](size_t k) {
    const Complex others = spectrum_[k] + around.near(roots_.at(k));
    const Complex value = a + others;
    const double most = std::sqrt(std::norm(value)) * (1 + 2 * kRounding) + error;
    const double log_most = std::log(most);
    log_modulus_[k] += count * log_most;
    Complex log_value;                 // of the value, or of its quotient by a
    if (log_modulus_[k] < kNothing) {  // of many steps together nothing is left: any phase will do
      log_value = log_most - (split ? log_a : 0);
      error_[k] += 2;
    } else if (split) {
      log_value = log_of_one_and(others / a);
    } else {
      log_value = value == 0.0 ? Complex(-1000) : std::log(value);
    }
    error_[k] += count * error / most;
    log_value *= count;
    size_[k] += modulus_at_most(log_value);
    log_spectrum_[k] += log_value;
  };
  in_parts(log_spectrum_.size(), kFrequenciesOfAPart, kNanosecondsOfOne, [&](size_t first, size_t end) {
    for (size_t k = first; k < end; ++k) multiply(k);
  });
}

CircularPower::Density CircularPower::density(double h, double c) && {
  const size_t n = 2 * (log_spectrum_.size() - 1);
  Density density{.mass = {},
                  .each = 0,
                  .beside = 0,
                  .in_sum = 0,
                  .in_cut = 0,
                  // (1+r)^count - 1 <= e^(count·r) - 1. The powers of the heaviest: each logarithm and product errs by
                  // two roundings, each sum by one.
                  .relative = 1.01 * std::expm1(1.01 * relative_ + kRounding * (4 + (4 + pieces_) * heaviest_size_))};
  const bool apart = all_split_ && log_heaviest_ > -kLeastApart;
  const double common = apart ? std::exp(log_heaviest_) : 0;
  const double a = std::exp(-c * h);
  const double b = std::exp(-(c + 1) * h);
  const double less_a = std::expm1(-c * h);
  const double less_b = std::expm1(-(c + 1) * h);
  const double less_h = -std::expm1(-h);
  struct Sums {
    double errors = 0, moduli = 0, in_sum = 0, in_cut = 0;
    double nothing = 0;
  };
  const auto take = [&](size_t k, Sums& sums) {
    Complex& value = log_spectrum_[k];
    if (!apart && log_modulus_[k] < kNothing) {  // e^-700 at most, and so is its error
      value = 0;
      sums.nothing = 1e-280;  // all of them, in any of the sums below
      return;
    }
    double own;   // rounding
    if (apart) {  // |e^w - 1| <= |w|·e^max(0, Re w)
      own = 16 * size_[k] * common * std::exp(std::max(0.0, value.real()));
      value = common * exp_less_one(value);
    } else {
      value = std::exp(log_heaviest_ + value);
      own = (8 + 4 * (size_[k] + std::abs(log_heaviest_))) * modulus_at_most(value);
    }
    const double error = std::exp(log_modulus_[k]) * error_[k] * 1.01 + kRounding * own;
    const double times = k == 0 || 2 * k == n ? 1 : 2;
    sums.errors += times * error;
    sums.moduli += times * modulus_at_most(value);
    // |1 - aw|² = (1 - a)² + 2a(1 - cos)
    const Complex root = roots_.at(k);
    const double less_cos = root.real() > 0 ? root.imag() * root.imag() / (1 + root.real()) : 1 - root.real();
    const double of_a = std::sqrt(less_a * less_a + 2 * a * less_cos);
    const double of_b = std::sqrt(less_b * less_b + 2 * b * less_cos);
    sums.in_sum += times * error * less_h / (of_a * of_b);
    sums.in_cut += times * error * (1 / of_a + 1 / of_b);
  };
  std::vector<Sums> parts(log_spectrum_.size() / kFrequenciesOfAPart + 1);
  in_parts(log_spectrum_.size(), kFrequenciesOfAPart, kNanosecondsOfOne, [&](size_t first, size_t end) {
    Sums sums;
    for (size_t k = first; k < end; ++k) take(k, sums);
    parts[first / kFrequenciesOfAPart] = sums;
  });
  Sums all;
  for (const Sums& part : parts) {
    all.errors += part.errors;
    all.moduli += part.moduli;
    all.in_sum += part.in_sum;
    all.in_cut += part.in_cut;
    all.nothing = std::max(all.nothing, part.nothing);
  }
  density.in_sum = 1.01 * all.in_sum / static_cast<double>(n) + all.nothing;
  density.in_cut = 1.01 * all.in_cut / static_cast<double>(n) + all.nothing;
  fourier_.inverse(log_spectrum_, density.mass);
  density.beside = transform_ * norm(density.mass) + all.nothing;
  density.each = 1.01 * (all.errors + transform_ * all.moduli) / static_cast<double>(n) + all.nothing;
  const auto place = static_cast<ptrdiff_t>(static_cast<size_t>(place_) & (n - 1));
  std::rotate(density.mass.begin(), density.mass.end() - place, density.mass.end());
  if (apart) density.mass[static_cast<size_t>(place_) & (n - 1)] += common;
  return density;
}

Piece piece_of_phase(Direction direction, const ComposedRelease& phase, const Shape& shape, size_t index,
                     bool less_private) {
  GridShape grid = shape.grid;
  grid.log_scale = shape.phases[index].log_scale;
  grid.low = shape.phases[index].low;
  grid.high = shape.phases[index].high;
  grid.count = phase.count;
  if (phase.is_table())
    return {less_private ? less_private_table(phase.atoms(direction, true), grid)
                         : more_private_table(phase.atoms(direction, false), grid),
            phase.count, grid.log_scale};
  return {less_private ? less_private_cells(direction, phase.release, grid)
                       : more_private_cells(direction, phase.release, grid),
          phase.count, grid.log_scale};
}

std::vector<Piece> pieces_of_phases(Direction direction, const std::vector<ComposedRelease>& phases, const Shape& shape,
                                    bool less_private) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < phases.size(); ++i)
    pieces.push_back(piece_of_phase(direction, phases[i], shape, i, less_private));
  return pieces;
}

Side::Side(const std::vector<Piece>& pieces, const Shape& shape, bool less_private)
    : h_(shape.grid.h), c_(shape.grid.c), less_private_(less_private), nothing_(pieces.empty()) {
  const size_t n = shape.grid.n;
  CircularPower power(n);
  double shift = 0;
  double exponents = 0;  // moduli of what log_scale_ is the sum of
  double shifts = 0;     // and of what the shift is the sum of
  bool measured = true;
  for (const auto& [cells, count, log_scale, once] : pieces) {
    power.add(cells, count);
    log_scale_ += count * log_scale + once.log_factor + c_ * h_ * once.moved;
    exponents += std::abs(count * log_scale) + std::abs(once.log_factor) + std::abs(c_ * h_ * once.moved);
    shift += count * cells.shift + once.moved;
    shifts += std::abs(count * cells.shift) + std::abs(once.moved);
    dropped_ += count * cells.dropped + once.dropped;
    log_total_ += count * cells.log_total;
    measured = measured && !cells.moments.empty();
    for (size_t j = 0; j < cells.moments.size(); ++j) {
      const auto [c, moment] = cells.moments[j];
      if (moments_.size() <= j) moments_.emplace_back(c, 0.0);
      moments_[j].second += count * moment + c * h_ * std::max(0.0, once.moved);
    }
  }
  if (!measured) moments_.clear();
  const CircularPower::Density density = std::move(power).density(h_, c_);
  rounding_ = density.beside;
  in_sum_ = density.in_sum;
  in_cut_ = density.in_cut;

  // The grid is (k + shift)·h; whole steps go into the index.
  const double whole = std::floor(shift);
  origin_ = (shift - whole) * h_;
  start_ = shape.start;
  const long double one_step = std::exp(-static_cast<long double>(h_));
  long double sum = 0;
  long double tilted = 0;
  suffix_.assign(n + 1, 0);
  suffix_tilted_.assign(n + 1, 0);
  for (size_t j = n; j-- > 0;) {
    const int64_t k = shape.start + static_cast<int64_t>(j) - static_cast<int64_t>(whole);
    const double value = density.mass[static_cast<size_t>(k) & (n - 1)];
    // e^(-c·loss) relative to the window's start.
    const double weight = value * std::exp(-c_ * h_ * static_cast<double>(j));
    suffix_[j] = static_cast<double>(sum += weight);
    suffix_tilted_[j] = static_cast<double>(tilted = weight + one_step * tilted);  // relative to its own loss
  }
  log_base_ = log_scale_ - c_ * (h_ * static_cast<double>(shape.start) + origin_);
  period_ = h_ * static_cast<double>(n);
  // Of the weights, by the size of their exponents, and of n additions and products in long double.
  // Losses err by the roundings of the shift and of the window's start, the scale by those of its exponent.
  const double additions = 4 + static_cast<double>(pieces.size());
  const double base = std::abs(h_ * static_cast<double>(shape.start)) + 2 * h_;
  const double of_losses = kRounding * (4 * (base + period_) + additions * shifts * h_);
  relative_ =
      1.01 * density.relative + 1e-12 + kRounding * (additions * exponents + 4 * c_ * base) + 2 * c_ * of_losses;
  adding_ = kRounding * (16 + 2 * c_ * period_) + of_losses +
            4 * static_cast<double>(n) * static_cast<double>(std::numeric_limits<long double>::epsilon());
}

std::optional<Side::Read> Side::read(double epsilon) const {
  const double base = static_cast<double>(start_) * h_ + origin_;
  if (nothing_ || epsilon < base) return std::nullopt;
  const auto first = static_cast<size_t>(std::min(std::ceil((epsilon - base) / h_), 1e15));
  if (first + 1 >= suffix_.size()) return std::nullopt;
  const double sum =
      suffix_[first] - std::exp(epsilon - base - h_ * static_cast<double>(first)) * suffix_tilted_[first];
  // 2-norm of the weights e^(-cs)(1 - e^-s), s = 0, h, …
  const double weights = std::sqrt((1 / (2 * c_) - 2 / (2 * c_ + 1) + 1 / (2 * c_ + 2)) / h_ + 1);
  const double decay = std::exp(-c_ * h_ * static_cast<double>(first));
  const double cut = std::exp(-c_ * h_ * static_cast<double>(suffix_.size() - 1 - first));
  const double noise = (rounding_ * weights + in_sum_ + cut * in_cut_) * decay * 1.01;
  return Read{sum, noise, noise + adding_ * (std::abs(suffix_[first]) + 2 * noise)};
}

double Side::delta(double epsilon) const {
  const auto found = read(epsilon);
  if (!found) return less_private_ ? 1 : -1;
  const double scale = std::exp(log_base_);
  if (!less_private_) {
    const double sum = std::max(0.0, found->sum - found->error);
    return std::max(0.0, scale - kLeast) * sum * std::max(0.0, 1 - relative_) - dropped_ - 4 * kLeast;
  }
  const double end = static_cast<double>(start_) * h_ + origin_ + period_;
  double beyond = 1;
  for (const auto& [c, k] : moments_) beyond = std::min(beyond, std::exp(k - c * end));
  const double most = (scale + kLeast) * (found->sum + found->error) * (1 + relative_) + beyond + dropped_ + 8 * kLeast;
  return most >= 0 ? most : 1;  // a NaN says nothing: masses too large for a double
}

double Side::rounding_share(double epsilon) const {
  const auto found = read(epsilon);
  return found && found->sum > 0 ? found->noise / found->sum : 1;
}

double alias(const Side& lower, double c, double epsilon) {
  const double period = lower.period();
  double right = kInfinity;
  for (const auto& [other, k] : lower.moments()) {
    const double first = std::exp(k - other * epsilon - (other - c) * period) + kLeast;
    right = std::min(right, first / -std::expm1(-(other - c) * period));
  }
  return right + (std::exp(std::max(0.0, lower.log_total()) - c * period) + kLeast) / -std::expm1(-c * period);
}

}  // namespace ghostshard::accountant
