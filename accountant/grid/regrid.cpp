#include "accountant/grid/regrid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kRounds = 8;  // of evening out

// What of the moments is wanted (pld_cells.h), measured: nothing but the given numbers counts. 1e-9 for its rounding.
void measure(TiltedCells& cells, const std::vector<std::pair<int64_t, double>>& placed, double c, double h,
             double log_scale) {
  struct Logarithm {
    double loss, mass;
  };
  std::vector<Logarithm> logarithms;
  logarithms.reserve(placed.size());
  for (const auto& [k, mass] : placed)
    if (mass > 0) logarithms.push_back({(static_cast<double>(k) + cells.shift) * h, std::log(mass)});
  const auto log_moment = [&](double other) {
    double top = -kInfinity;
    for (const auto& [loss, mass] : logarithms) top = std::max(top, mass + (other - c) * loss);
    double sum = 0;
    for (const auto& [loss, mass] : logarithms) sum += std::exp(mass + (other - c) * loss - top);
    return top + std::log(sum) + log_scale + 1e-9 * (1 + std::abs(top) + std::abs(log_scale));
  };
  for (const double share : kMomentShares) cells.moments.emplace_back(c * share, log_moment(c * share));
  cells.log_total = log_moment(0);
}

void place(TiltedCells& cells, const std::vector<std::pair<int64_t, double>>& placed, size_t n) {
  cells.mass.assign(n, 0);
  for (const auto& [k, mass] : placed) cells.mass[static_cast<size_t>(k) & (n - 1)] += mass;
}

}  // namespace

TiltedCells placed_on_grid(const std::vector<std::pair<int64_t, double>>& placed, double shift, const GridShape& grid,
                           double log_scale) {
  TiltedCells cells;
  cells.shift = shift;
  measure(cells, placed, grid.c, grid.h, log_scale);
  place(cells, placed, grid.n);
  return cells;
}

// Each loss is split between its neighbours on the coarse grid so that P and Q keep their totals.
TiltedCells connected_dots(const FineMasses& fine, const GridShape& grid) {
  const auto low = static_cast<int64_t>(std::floor(fine.first / grid.h)) - 1;
  const double last = fine.first + fine.h * static_cast<double>(fine.mass.size());
  std::vector<std::pair<int64_t, double>> placed;
  for (int64_t k = low; k <= static_cast<int64_t>(std::floor(last / grid.h)) + 2; ++k) placed.emplace_back(k, 0.0);
  const double width = -std::expm1(-grid.h);
  for (size_t j = 0; j < fine.mass.size(); ++j) {
    if (!(fine.mass[j] > 0)) continue;
    const double loss = fine.first + fine.h * static_cast<double>(j);
    auto k = static_cast<int64_t>(std::floor(loss / grid.h));
    if (loss - static_cast<double>(k) * grid.h >= grid.h) ++k;  // the quotient was rounded
    const double above = std::max(0.0, loss - static_cast<double>(k) * grid.h);
    // Roundings of the loss, of up to 1e6 steps of the mesh, to the right.
    const double share =
        std::clamp(-std::expm1(-above) / width + 8 * kRounding * (1 + std::abs(loss) / grid.h), 0.0, 1.0);
    const auto index = static_cast<size_t>(k - low);
    placed[index].second += fine.mass[j] * (1 - share) * std::exp(-fine.c * above);
    placed[index + 1].second += fine.mass[j] * share * std::exp(fine.c * (grid.h - above));
  }
  TiltedCells cells = placed_on_grid(placed, 0, grid, fine.log_scale);
  const double span = std::abs(fine.first) + std::abs(last);
  cells.relative = kRounding * (24 + 2 * grid.h / fine.h + 8 * fine.c * span);
  return cells;
}

// Neighbours are merged into one outcome of loss log(P/Q), for which the boundaries between them (which may cut through
// a point: an outcome may be told apart at random) are moved until it lies on the coarse grid, but for little.
TiltedCells merged_neighbours(const FineMasses& fine, const GridShape& grid) {
  const size_t size = fine.mass.size();
  const double ratio = grid.h / fine.h;
  const auto mode = static_cast<size_t>(std::max_element(fine.mass.begin(), fine.mass.end()) - fine.mass.begin());
  const double centre = fine.h * static_cast<double>(mode);  // beyond first
  std::vector<double> p(size), q(size);
  for (size_t j = 0; j < size; ++j) {
    const double away = fine.h * static_cast<double>(j) - centre;
    p[j] = fine.mass[j] * std::exp(-fine.c * away);
    q[j] = p[j] * std::exp(-away);
  }
  const auto low = static_cast<int64_t>(std::floor(fine.first / grid.h));
  const double last = fine.first + fine.h * static_cast<double>(size);
  const auto count = static_cast<size_t>(static_cast<int64_t>(std::floor(last / grid.h)) - low + 2);
  const auto level = [&](size_t i) {  // of the coarse grid, beyond the mode
    return static_cast<double>(low + static_cast<int64_t>(i)) * grid.h - fine.first - centre;
  };
  // Point j takes the place from j to j + 1.
  std::vector<double> even(count + 1), boundary(count + 1);
  for (size_t i = 0; i <= count; ++i) {
    const double middle = (static_cast<double>(low + static_cast<int64_t>(i)) - 0.5) * grid.h;
    even[i] = std::clamp((middle - fine.first) / fine.h + 0.5, 0.0, static_cast<double>(size));
  }
  even.front() = 0;
  even.back() = static_cast<double>(size);
  boundary = even;
  struct Group {
    double p = 0, q = 0;
    double excess = 0;  // of log(P/Q) over the level, in coarse steps
  };
  std::vector<Group> groups(count);
  const auto sum_up = [&] {
    for (size_t i = 0; i < count; ++i) {
      Group group;
      const double from = boundary[i];
      const double to = boundary[i + 1];
      for (auto j = static_cast<size_t>(from); j < size && static_cast<double>(j) < to; ++j) {
        const auto at = static_cast<double>(j);
        const double share = std::min(to, at + 1) - std::max(from, at);
        group.p += share * p[j];
        group.q += share * q[j];
      }
      const double away = level(i);
      // Relative roundings: of a group's sums, of exponents up to (c + 1)·away, of the loss itself.
      const double rounding = kRounding * (2 * ratio + 40 + 8 * (fine.c + 1) * (std::abs(away) + grid.h)) +
                              kRounding * 8 * (std::abs(fine.first) + std::abs(last));
      group.excess = group.p > 0 && group.q > 0 ? (std::log(group.p / group.q) - away - rounding) / grid.h : -kInfinity;
      groups[i] = group;
    }
  };
  for (int round = 0; round < kRounds; ++round) {
    sum_up();
    for (size_t i = 1; i < count; ++i) {
      const double both = groups[i - 1].excess + groups[i].excess;
      if (std::abs(groups[i - 1].excess) < 1 && std::abs(groups[i].excess) < 1)
        boundary[i] = std::clamp(boundary[i] - both / 2 * ratio, even[i] - 0.45 * ratio, even[i] + 0.45 * ratio);
      boundary[i] = std::clamp(boundary[i], 0.0, static_cast<double>(size));
    }
  }
  sum_up();
  // How far the grid is moved down for all but few to lie above it; those go down a step.
  std::vector<Misplaced> misplaced(count);
  for (size_t i = 0; i < count; ++i)
    misplaced[i] = {groups[i].excess, groups[i].p > 0 ? groups[i].p * std::exp(fine.c * level(i)) : 0.0};
  const double below = cheapest_power_of_half(0, 120, misplaced);
  std::vector<std::pair<int64_t, double>> placed;
  for (size_t i = 0; i < count; ++i) {
    if (!(groups[i].excess >= -below - 1)) continue;  // what is left out is sound
    const bool fits = groups[i].excess >= -below;
    const double away = level(i) - (below + (fits ? 0 : 1)) * grid.h;
    placed.emplace_back(low + static_cast<int64_t>(i) - (fits ? 0 : 1), groups[i].p * std::exp(fine.c * away));
  }
  TiltedCells cells = placed_on_grid(placed, -below, grid, fine.log_scale);
  cells.relative = kRounding * (40 + 2 * ratio + 8 * fine.c * (std::abs(fine.first) + std::abs(last)));
  return cells;
}

}  // namespace ghostshard::accountant
