#include "accountant/pld_cells.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double upper_tail(double z) { return 0.5 * std::erfc(z * 0.70710678118654752440); }

// The outcome where log w(x) = loss; -infinity where no outcome has so small a loss.
double outcome(SampledGaussian release, double loss) {
  const auto [q, sigma] = release;
  const double odds = loss > 40 ? std::exp(loss) - (1 - q) : std::expm1(loss) + q;
  return odds > 0 ? sigma * sigma * (std::log(odds) - std::log(q)) + 0.5 : -kInfinity;
}

// Probability of a <= N(0,1) < b from the tails that are small there, and its rounding.
struct Mass {
  double value, error;
};
struct Tails {
  double z, low, high;
};
Tails tails(double z) { return {z, upper_tail(-z), upper_tail(z)}; }
Mass between(const Tails& a, const Tails& b) {
  const bool right = a.z + b.z > 0;
  const double outer = right ? a.high : b.low;
  const double inner = right ? b.high : a.low;
  const double z = right ? a.z : b.z;
  return {std::max(0.0, outer - inner), kRounding * (6 + 3 * z * z) * (outer + inner)};
}

// Calls visit(i, P, Q) for all cells up to `reach`, with the roundings of both. Returns the probability P beyond them.
// offsets: by how much (in units of h) the lower boundary of each cell is moved; empty for none.
template <class Visitor>
double for_each_cell(Direction direction, SampledGaussian release, const GridShape& shape,
                     const std::vector<double>& offsets, const Visitor& visit) {
  const auto [q, sigma] = release;
  const bool remove = direction == Direction::kRemove;
  // Outcomes in [first, last] are kept; loss rises with the outcome when a unit is removed, else falls.
  const double first = -shape.reach * sigma;
  const double last = 1 + shape.reach * sigma;
  const double u_low = (2 * first - 1) / (2 * sigma * sigma);
  const double u_high = (2 * last - 1) / (2 * sigma * sigma);
  const auto log_w = [&](double u) { return u > 300 ? std::log(q) + u : std::log1p(q * std::expm1(u)); };
  const double least = remove ? log_w(u_low) : -log_w(u_high);
  const double most = remove ? log_w(u_high) : -log_w(u_low);
  const auto begin = static_cast<int64_t>(std::floor(least / shape.h));
  const auto end = static_cast<int64_t>(std::floor(most / shape.h)) + 1;
  const auto boundary = [&](int64_t i) {
    const auto index = static_cast<size_t>(i - begin);
    const double loss = (static_cast<double>(i) + (index < offsets.size() ? offsets[index] : 0.0)) * shape.h;
    double x = remove ? outcome(release, loss) : outcome(release, -loss);
    // What lies below the first outcome is counted in the first cell, which can only raise its loss.
    if (remove ? i == begin : i == end) x = remove ? -kInfinity : x;
    x = std::clamp(x, -40 * sigma - 40, 40 * sigma + 40);
    return std::pair{tails(x / sigma), tails((x - 1) / sigma)};
  };
  auto [zero, one] = boundary(begin);
  if (!remove) {  // least loss: the largest outcomes; all of them belong to the first cell
    zero = tails(40 + 40 / sigma);
    one = zero;
  } else {
    zero = tails(-40 - 40 / sigma);
    one = zero;
  }
  for (int64_t i = begin; i < end; ++i) {
    const auto [next_zero, next_one] = boundary(i + 1);
    const Mass at_zero = remove ? between(zero, next_zero) : between(next_zero, zero);
    const Mass at_one = remove ? between(one, next_one) : between(next_one, one);
    const Mass mixture{(1 - q) * at_zero.value + q * at_one.value,
                       (1 - q) * at_zero.error + q * at_one.error + 4 * kRounding * at_zero.value};
    if (remove)
      visit(i, mixture, at_zero);
    else
      visit(i, at_zero, mixture);
    zero = next_zero;
    one = next_one;
  }
  const double beyond_zero = remove ? zero.high : zero.low;
  const double beyond_one = remove ? one.high : one.low;
  return (remove ? (1 - q) * beyond_zero + q * beyond_one : beyond_zero) * (1 + 1e-12) + 1e-300;
}

size_t wrapped(int64_t i, size_t n) { return static_cast<size_t>(i) & (n - 1); }  // n is a power of two

}  // namespace

TiltedCells less_private_cells(Direction direction, SampledGaussian release, const GridShape& shape) {
  TiltedCells cells;
  cells.mass.assign(shape.n, 0);
  const double h = shape.h;
  const double width = -std::expm1(-h);
  for (const double share : {1.03, 1.1, 1.25, 1.5, 2.0}) cells.moments.emplace_back(shape.c * share, 0.0);
  cells.dropped = for_each_cell(direction, release, shape, {}, [&](int64_t i, const Mass& p, const Mass& q) {
    const double loss = static_cast<double>(i) * h;
    const double total = p.value + p.error;
    if (!(total > 0)) return;
    const double growth = std::exp(loss);
    const double error = (p.error + growth * q.error + 4 * kRounding * (p.value + growth * q.value)) / width;
    const double right = std::clamp((p.value - growth * q.value) / width + error, 0.0, total);
    const double left = total - right;
    const double tilt = std::exp(std::min(shape.c * loss - shape.log_scale, 700.0));
    cells.mass[wrapped(i, shape.n)] += left * tilt;
    cells.mass[wrapped(i + 1, shape.n)] += right * tilt * std::exp(shape.c * h);
    for (auto& [c, sum] : cells.moments) sum += (left + right * std::exp(c * h)) * std::exp(c * loss);
  });
  for (auto& [c, sum] : cells.moments) sum = std::log(sum) + 1e-9;
  return cells;
}

TiltedCells more_private_cells(Direction direction, SampledGaussian release, const GridShape& shape) {
  struct Merged {
    int64_t i;
    double place;  // of log(P/Q) in the cell, from 0 to 1, rounded down
    double weight;
  };
  std::vector<Merged> merged;
  const double h = shape.h;
  // First where log(P/Q) lies in even cells; then the boundaries are moved so that it lies in the middle of each.
  std::vector<double> offsets;
  (void)for_each_cell(direction, release, shape, {}, [&](int64_t i, const Mass& p, const Mass& q) {
    double place = 0.5;
    if (p.value > 4 * p.error && q.value > 4 * q.error)
      place = (std::log(p.value / q.value) - static_cast<double>(i) * h) / h;
    offsets.push_back(std::clamp(0.5 - place, -0.25, 0.25));
  });
  for (size_t i = offsets.size(); i-- > 1;) offsets[i] = (offsets[i] + offsets[i - 1]) / 2;
  (void)for_each_cell(direction, release, shape, offsets, [&](int64_t i, const Mass& p, const Mass& q) {
    const double mass = p.value - p.error;
    if (!(mass > 0)) return;
    const double loss = static_cast<double>(i) * h;
    const double weight = mass * std::exp(std::min(shape.c * loss - shape.log_scale, 700.0));
    double place = 0;
    if (q.value > q.error) {
      const double excess = std::log(mass / (q.value + q.error)) - loss - 4 * kRounding * (1 + std::abs(loss));
      place = std::clamp(excess / h, 0.0, 1.0);
    }
    merged.push_back({i, place, weight});
  });
  TiltedCells cells;
  double least = kInfinity;
  for (int k = 1; k <= 24; ++k) {
    const double a = 0.5 - std::pow(0.5, k);
    double cost = 0.5 - a;
    for (const Merged& cell : merged) cost += cell.place < a ? cell.weight : 0.0;
    if (cost < least) {
      least = cost;
      cells.shift = a;
    }
  }
  cells.mass.assign(shape.n, 0);
  const double down = std::exp(-shape.c * h);
  for (const Merged& cell : merged) {
    const bool fits = cell.place >= cells.shift;
    cells.mass[wrapped(fits ? cell.i : cell.i - 1, shape.n)] += cell.weight * (fits ? 1 : down);
  }
  return cells;
}

}  // namespace ghostshard::accountant
