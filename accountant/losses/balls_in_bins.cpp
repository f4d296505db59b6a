// Why the pair dominates. Given where all other units are, a pass releases y_b = base_b + v_b·1[the unit is in b] + z_b
// for b = 1 … t, z_b ~ N(0, sigma²I), |v_b| <= 1; base_b and v_b may depend on the releases before. With the unit the
// density of all y is that without it, times
//   S' = (1/t)·Σ_b X'_b,  X'_b = exp(<y_b - base_b, v_b>/sigma² - |v_b|²/(2 sigma²)).
// Without the unit X'_b is log-normal with mean 1 and deviation |v_b|/sigma of its logarithm, given what was released
// before: it grows in convex order with |v_b|. So for a convex f, E f(S') is largest if |v_b| = 1 for b = t, then for b
// = t - 1, … (the mean over the later ones is convex in the sum of the earlier ones). Then the X_b are independent, and
//   delta of removing = E (S - e^epsilon)+,   delta of adding = E (1 - e^epsilon·S)+,
// both convex in S. A mean over the places of other units keeps this. A unit that is zeroed out is one removed.
//
// How S is bounded. Let X <= Y in convex order: E f(X) <= E f(Y) for each convex f. The order is kept by sums of
// independent variables. So it is enough to replace each X_b, and each sum of some of them, by one on finitely many
// points,
//   larger:  what lies between two neighbouring points of a grid is split between them, so that its mean is kept;
//   smaller: what lies between two points goes to its mean.
// Both err by the variance within a cell alone. S is its own density relative to Q: mass q at S is mass S·q of P.
//
// Rounding. Masses are raised (lowered) in each operation by more than they may err. Positions err relatively: the sum
// of two by one rounding, a mean by those of its terms. If all positions are multiplied by 1 + e in the end, e the sum
// of all these, E (S - c)+ is an upper end, and E (1 - c·S)+ if they are multiplied by 1 - e; the smaller variable has
// the signs exchanged. Probabilities below 1e-290 underflow: `kLost` is more than all of them together.
#include "accountant/losses/balls_in_bins.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "accountant/losses/normal_mass.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr int kCells = 2048;
constexpr int kLastCells = 8 * kCells;  // of the last sum: cells cost little, pairs of them much
constexpr double kReach = 10;           // deviations on either side, under P and under Q
constexpr double kOutside = 8e-24;      // more than the normal tail beyond
// Positions are at most t·e^(s²/2 + kReach·s) <= 1e180 for s <= 20, products of masses that underflow below 1e-323
// each, and there are at most 36 sums of 5e6 of them.
constexpr double kLost = 1e-90;
constexpr double kLeastMass = 1e-290;

enum class Side { kLarger, kSmaller };  // in convex order

// A positive variable on ascending points.
struct Points {
  std::vector<double> at, mass;
  double position_error = 0;  // relative
};

void put(Points& points, double at, double mass) {
  points.at.push_back(at);
  points.mass.push_back(mass);
}

// Mass m of mean d above the lower of two points that are `width` apart, split between them; both raised by `error`.
struct Split {
  double left, right;
  Split(double m, double d, double width, double error)
      : left(std::max(0.0, m * (1 + error) - d / width * (1 - error)) * (1 + 4 * kRounding)),
        right(d / width * (1 + error)) {}
};

// X = e^(s·z - s²/2), z ~ N(0, 1), by cells of z. The grid's points are doubles near those of the cells' ends: they
// differ by a rounding of the exponent, as if X had been moved by as much.
Points log_normal(double s, Side side) {
  const double first = -kReach;
  const double step = (2 * kReach + s) / kCells;
  Points points;
  double left = kOutside;  // that is left at the lower end of the cell, and what lies below
  double low = first;
  for (int i = 0; i < kCells; ++i) {
    const double high = first + (i + 1) * step;
    const auto exponent = [&](double z) { return s * z - s * s / 2; };
    const double x = std::exp(exponent(low));
    const double width = std::exp(exponent(high)) - x;
    const double moved = kRounding * (16 + 4 * std::max(std::abs(exponent(low)), std::abs(exponent(high))));
    const Mass q = normal_mass(low, high);
    const Mass p = normal_mass(low - s, high - s);  // the mean of X in the cell
    // Ends that are rounded move the masses of narrow cells.
    const double ends = 8 * kRounding * (kReach + 2 * s) / step;
    const double q_error = q.error + ends * q.value;
    const double p_error = p.error + (ends + moved) * p.value;
    if (side == Side::kLarger) {
      const double right = std::max(0.0, (p.value + p_error - x * (q.value - q_error)) / width) * (1 + 8 * kRounding);
      const double stays = ((x + width) * (q.value + q_error) - (p.value - p_error)) / width;
      put(points, x, left + std::max(0.0, stays) * (1 + 8 * kRounding));
      left = right;
    } else if (q.value - q_error > kLeastMass && p.value > kLeastMass) {
      put(points, p.value / q.value, q.value - q_error);
      points.position_error = std::max(points.position_error, 2 * (p_error / p.value + q_error / q.value));
    }
    low = high;
    points.position_error = std::max(points.position_error, moved);
  }
  // Beyond the last cell lies no more than e^-(kReach·s + s²/2) of the tail at kReach: a normal tail falls from z to z
  // + s by at least e^-(z·s + s²/2). The mean that it has above the last point the caller adds as infinite.
  const double last = std::exp(s * low - s * s / 2);
  if (side == Side::kLarger) put(points, last, left + kOutside / last * (1 + 1e-9));
  return points;
}

// ---- Where cells are narrow. Any grid gives bounds; this one follows the sum's own quantiles.

// The z for which a share p <= 1/2 of N(0, 1) lies below it, but for some thousandths (Winitzki 2008).
double quantile(double p) {
  constexpr double a = 0.147;
  const double l = std::log(4 * p * (1 - p));
  const double b = 2 / (a * 3.141592653589793) + l / 2;
  return -std::sqrt(2 * (std::sqrt(b * b - l / a) - b));
}

// The same variable on few points, roughly.
std::vector<std::pair<double, double>> few_of(const Points& points) {
  constexpr size_t kFew = 128;
  const size_t group = (points.at.size() + kFew - 1) / kFew;
  std::vector<std::pair<double, double>> few;
  for (size_t i = 0; i < points.at.size(); i += group) {
    double mass = 0;
    double mean = 0;
    for (size_t j = i; j < std::min(i + group, points.at.size()); ++j) {
      mass += points.mass[j];
      mean += points.mass[j] * points.at[j];
    }
    if (mass > 0 && mean > 0) few.emplace_back(mean / mass, mass);
  }
  return few;
}

struct Knot {
  double z, log_at;
};

// Of the sum's distribution function, half a deviation apart, from -kReach to `highest`: all beyond is rarer than what
// the summands leave out.
std::vector<Knot> knots_of(const Points& a, const Points& b, double highest) {
  constexpr double kApart = 0.5;
  std::vector<std::pair<double, double>> sums;
  for (const auto& [at, mass] : few_of(a))
    for (const auto& [other, share] : few_of(b))
      if (mass * share > 0) sums.emplace_back(at + other, mass * share);
  std::sort(sums.begin(), sums.end());
  std::vector<double> above(sums.size() + 1, 0.0);
  for (size_t i = sums.size(); i-- > 0;) above[i] = above[i + 1] + sums[i].second;
  std::vector<Knot> knots;
  double below = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double half = sums[i].second / 2;
    const double lower = (below + half) / above[0];
    const double upper = (above[i + 1] + half) / above[0];
    below += sums[i].second;
    if (!(std::min(lower, upper) > kLeastMass)) continue;
    const double z = lower < upper ? quantile(std::min(lower, 0.5)) : -quantile(std::min(upper, 0.5));
    if (z >= -kReach && z <= highest && (knots.empty() || z >= knots.back().z + kApart))
      knots.push_back({z, std::log(sums[i].first)});
  }
  return knots;
}

// Ascending, from 0 to the largest sum.
std::vector<double> grid_for(const Points& a, const Points& b, double s, int cells) {
  const std::vector<Knot> knots = knots_of(a, b, kReach + s);
  std::vector<double> grid = {0};
  const double last = a.at.back() + b.at.back();
  const auto add = [&](double at) {
    if (at > grid.back() * (1 + 1e-13) && at < last) grid.push_back(at);
  };
  add(a.at.front() + b.at.front());
  const double step = (knots.back().z - knots.front().z) / cells;
  size_t k = 0;
  for (int i = 0; i <= cells && knots.size() > 1; ++i) {
    const double z = knots.front().z + i * step;
    while (k + 2 < knots.size() && z > knots[k + 1].z) ++k;
    const double share = (z - knots[k].z) / (knots[k + 1].z - knots[k].z);
    add(std::exp(knots[k].log_at + share * (knots[k + 1].log_at - knots[k].log_at)));
  }
  grid.push_back(last);
  return grid;
}

// ---- Sums.

// The mass of a + b in each cell of the grid, and its mean above the cell's lower end times that mass.
struct Cells {
  std::vector<double> mass, mean;
};

Cells convolved(const Points& a, const Points& b, const std::vector<double>& grid) {
  Cells cells{std::vector<double>(grid.size() - 1), std::vector<double>(grid.size() - 1)};
  const bool twice = &a == &b;
  size_t start = 0;  // where the row's first sum lies
  for (size_t i = 0; i < a.at.size(); ++i) {
    const size_t first = twice ? i : 0;
    while (start + 2 < grid.size() && a.at[i] + b.at[first] >= grid[start + 1]) ++start;
    size_t cell = start;
    double mass = 0;
    double mean = 0;
    for (size_t j = first; j < b.at.size(); ++j) {
      const double at = a.at[i] + b.at[j];
      while (cell + 2 < grid.size() && at >= grid[cell + 1]) {
        cells.mass[cell] += mass;
        cells.mean[cell] += mean;
        mass = mean = 0;
        ++cell;
      }
      const double share = a.mass[i] * b.mass[j] * (twice && j > i ? 2 : 1);
      mass += share;
      mean += share * (at - grid[cell]);
    }
    cells.mass[cell] += mass;
    cells.mean[cell] += mean;
  }
  return cells;
}

Points sum_of(const Points& a, const Points& b, double s, Side side, int into) {
  const std::vector<double> grid = grid_for(a, b, s, into);
  const Cells cells = convolved(a, b, grid);
  // A cell's terms are added up row by row.
  const double error = kRounding * static_cast<double>(a.at.size() + b.at.size() + 32);
  Points sum;
  sum.position_error = std::max(a.position_error, b.position_error) + 2 * kRounding;
  double left = 0;
  for (size_t c = 0; c + 1 < grid.size(); ++c) {
    const double mass = cells.mass[c];
    const double width = grid[c + 1] - grid[c];
    if (side == Side::kLarger) {
      const Split split(mass, cells.mean[c], width, error);
      put(sum, grid[c], left + split.left);
      left = split.right;
    } else if (mass > kLeastMass) {
      const double mean = std::clamp(cells.mean[c] / mass, 0.0, width);
      put(sum, grid[c] + mean, mass * (1 - error));
    }
  }
  if (side == Side::kLarger) put(sum, grid.back(), left);
  if (side == Side::kSmaller) sum.position_error += 4 * error;
  return sum;
}

// Of t independent copies of X.
Points sum_of_copies(int64_t t, double s, Side side) {
  const Points one = log_normal(s, side);
  Points sum = one;
  const auto bits = static_cast<uint64_t>(t);
  for (int bit = static_cast<int>(std::bit_width(bits)) - 2; bit >= 0; --bit) {
    const bool odd = (bits >> bit & 1) != 0;
    sum = sum_of(sum, sum, s, side, bit > 0 || odd ? kCells : kLastCells);
    if (odd) sum = sum_of(sum, one, s, side, bit > 0 ? kCells : kLastCells);
  }
  return sum;
}

void append(LossAtoms& atoms, double loss, double mass) {
  if (!(mass > 0)) return;
  atoms.loss.push_back(loss);
  atoms.mass.push_back(mass);
}

// The losses of removing and of adding, of a sum whose mean is t but for what is infinite. Away from privacy by
// `raised` = 1, towards it by -1.
struct Losses {
  LossAtoms remove, add;
};
Losses losses_of(const Points& sum, int64_t t, double raised) {
  Losses losses;
  const double moved = raised * sum.position_error;
  const double count = static_cast<double>(t);
  const auto rounded = [&](double loss) { return loss + raised * 8 * kRounding * (1 + std::abs(loss)); };
  const double more = 1 + raised * 8 * kRounding;
  for (size_t i = 0; i < sum.at.size(); ++i)
    if (const double s = sum.at[i] / count; s > 0)
      append(losses.remove, rounded(std::log(s) + std::log1p(moved)), s * sum.mass[i] * (1 + moved) * more);
  for (size_t i = sum.at.size(); i-- > 0;) {
    const double s = sum.at[i] / count;
    if (s > 0)
      append(losses.add, rounded(-std::log(s) - std::log1p(-moved)), sum.mass[i] * more);
    else if (raised > 0)
      losses.add.infinite += sum.mass[i] * more;
  }
  return losses;
}

}  // namespace

DominatingPair balls_in_bins_pair(const BallsInBinsGaussianEvent& event) {
  require_valid(event);
  const int64_t steps = event.steps;
  const double s = 1 / std::clamp(event.sigma.value(), kLeastBinsNoise, kMostBinsNoise);
  const Points larger = sum_of_copies(steps, s, Side::kLarger);
  const Points smaller = sum_of_copies(steps, s, Side::kSmaller);
  Losses less_private = losses_of(larger, steps, 1);
  Losses more_private = losses_of(smaller, steps, -1);
  // Each X_b may exceed the last point; the mean of what it does so by is 1/t of P's mass. The other factors' masses
  // are 1 but for roundings.
  less_private.remove.infinite += 2 * kOutside + kLost;
  // That of an X_b below the grid is moved up, which serves adding less: such outcomes count as infinite.
  less_private.add.infinite += static_cast<double>(steps) * kOutside + kLost;
  return {{std::move(less_private.remove), std::move(more_private.remove)},
          {std::move(less_private.add), std::move(more_private.add)}};
}

}  // namespace ghostshard::accountant
