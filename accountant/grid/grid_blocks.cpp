#include "accountant/grid/grid_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "accountant/grid/outcomes.h"
#include "accountant/grid/regrid.h"

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();

// The cells of one execution that hold anything, as losses: for moments.
struct Point {
  double loss, mass;
};

// One release on the fine grid, limited to its common losses.
struct Release {
  TiltedCells cells;
  std::vector<Point> points;
  double log_scale = 0;
};

Release on_fine_grid(Direction direction, const ComposedRelease& phase, const GridShape& grid, bool less_private) {
  Release found{less_private ? less_private_cells(direction, phase.release, grid)
                             : more_private_cells(direction, phase.release, grid),
                {},
                grid.log_scale};
  // One release's losses lie within a period, from the least on.
  const double least = std::max(grid.from, losses_of(direction, phase.release, grid.low, grid.high).first);
  const auto first = static_cast<int64_t>(std::floor(least / grid.h)) - 8;
  for (size_t j = 0; j < grid.n; ++j) {
    const int64_t k = first + static_cast<int64_t>(j);
    const double mass = found.cells.mass[static_cast<size_t>(k) & (grid.n - 1)];
    if (!(mass > 0)) continue;
    found.points.push_back({(static_cast<double>(k) + found.cells.shift) * grid.h, mass});
  }
  return found;
}

bool fits(Direction direction, const ComposedRelease& phase, const GridShape& grid) {
  const auto [low, high] = losses_of(direction, phase.release, grid.low, grid.high);
  return (std::min(high, grid.to) - std::max(low, grid.from)) / grid.h + 24 < static_cast<double>(grid.n);
}

// E[e^(theta·loss)] of one release's tilted measure, rounded up: the sum's own roundings, those of the exponents and
// those of the masses (pld_cells.h).
double log_moment_of(const Release& release, double theta) {
  double sum = 0;
  double largest = 0;
  double exponents = 0;
  for (const Point& point : release.points) {
    const double growth = std::exp(theta * point.loss);
    sum += point.mass * growth;
    largest = std::max(largest, growth);
    exponents = std::max(exponents, std::abs(theta * point.loss));
  }
  const double roundings =
      kRounding * (8 + 2 * exponents + static_cast<double>(release.points.size()) / 2) + release.cells.relative;
  return std::log(sum * (1 + roundings) + release.cells.rounding * largest) + 4 * kRounding;
}

// Chernoff, from the cells themselves: e^(-theta·at)·E[e^(theta·loss)] of all releases of a block, theta of either
// sign. It bounds the tilted measure on the side that theta points to.
double log_beyond(const std::vector<Release>& releases, const BlockPlan::Part& part, double theta, double at) {
  double log_moment = 0;
  double size = std::abs(theta * at);
  for (size_t i = 0; i < releases.size(); ++i) {
    if (!(part.counts[i] > 0)) continue;
    const double one = part.counts[i] * log_moment_of(releases[i], theta);
    log_moment += one;
    size += std::abs(one);
  }
  return log_moment - theta * at + kRounding * (4 + static_cast<double>(releases.size())) * size;
}

// What a circular grid over [first, last) puts in a wrong place.
struct Outside {
  double before, log_beyond;  // the tilted measure on either side, which may exceed 1: nobody promises its total
  // The tilted measure that all losses before the window have once they are moved up to its start: their mass times
  // e^(c(first - loss)), which e^(theta(first - loss)) exceeds for theta >= c.
  double moved_up;
};
Outside outside(const std::vector<Release>& releases, const BlockPlan::Part& part, double c, double first,
                double last) {
  double moved_up = std::numeric_limits<double>::infinity();
  for (const double theta : {c, 1.5 * c, std::max(c, part.before)})
    moved_up = std::min(moved_up, std::exp(log_beyond(releases, part, -theta, first)));
  return {std::exp(log_beyond(releases, part, -part.before, first)), log_beyond(releases, part, part.beyond, last),
          moved_up};
}

// One block, composed on the fine grid and put on the coarse one.
Piece piece_of(const std::vector<Release>& releases, const BlockPlan::Part& part, const BlockPlan& plan,
               bool less_private) {
  const size_t n = plan.coarse.grid.n;
  const double c = plan.coarse.grid.c;
  FineMasses fine{.first = 0, .h = plan.h, .c = c, .log_scale = 0, .mass = std::vector<double>(n)};
  CircularPower power(n);
  double dropped = 0;
  double shift = 0;
  for (size_t i = 0; i < releases.size(); ++i) {
    const double count = part.counts[i];
    if (!(count > 0)) continue;
    power.add(releases[i].cells, count);
    fine.log_scale += count * releases[i].log_scale;
    dropped += count * releases[i].cells.dropped;
    shift += count * releases[i].cells.shift;
  }
  const auto density = std::move(power).density(plan.h, c);
  const double whole = std::floor(shift);
  const auto start = static_cast<int64_t>(std::floor(part.start / plan.h));
  fine.first = static_cast<double>(start) * plan.h + (shift - whole) * plan.h;
  const double last = fine.first + plan.h * static_cast<double>(n);
  const auto [before, log_beyond, moved_up] = outside(releases, part, c, fine.first, last);
  const double beyond = std::exp(log_beyond);
  const double relative = 1.01 * density.relative + 1e-15;
  for (size_t j = 0; j < n; ++j) {
    const int64_t k = start + static_cast<int64_t>(j) - static_cast<int64_t>(whole);
    const double mass = density.mass[static_cast<size_t>(k) & (n - 1)];
    fine.mass[j] = less_private ? (std::max(0.0, mass) + density.each) * (1 + relative)
                                : std::max(0.0, mass * (1 - relative) - density.each - 1.01 * (before + beyond));
  }
  // The circle has put these losses a period too high, where e^(-c·period) of their mass is left.
  if (less_private) fine.mass[0] += 1.01 * moved_up;
  TiltedCells cells = less_private ? connected_dots(fine, plan.coarse.grid) : merged_neighbours(fine, plan.coarse.grid);
  cells.dropped = less_private ? dropped + 1.01 * std::exp(log_beyond + fine.log_scale - c * last) : 0;
  return {std::move(cells), part.times, fine.log_scale};
}

}  // namespace

std::vector<Piece> pieces_of_blocks(Direction direction, const std::vector<ComposedRelease>& phases,
                                    const BlockPlan& plan, bool less_private) {
  std::vector<Piece> pieces;
  std::vector<Release> releases(phases.size());
  for (size_t i = 0; i < phases.size(); ++i) {
    GridShape coarse = plan.coarse.grid;
    coarse.low = plan.coarse.phases[i].low;
    coarse.high = plan.coarse.phases[i].high;
    coarse.count = phases[i].count;
    if (plan.whole[i]) {
      pieces.push_back(piece_of_phase(direction, phases[i], plan.coarse, i, less_private));
      continue;
    }
    const Split& split = plan.splits[i];
    GridShape fine = common_part(direction, split, coarse);
    fine.h = plan.h;
    fine.log_scale = plan.log_scale[i];
    if (!fits(direction, phases[i], fine)) return {};
    releases[i] = on_fine_grid(direction, phases[i], fine, less_private);
    if (!(split.loss < std::numeric_limits<double>::infinity())) continue;
    RareCells rare = less_private ? less_private_rare(direction, phases[i].release, split, coarse)
                                  : more_private_rare(direction, phases[i].release, split, coarse);
    pieces.push_back({std::move(rare.cells), phases[i].count, 0, rare.once});
  }
  for (const BlockPlan::Part& part : less_private ? plan.less_private : plan.more_private)
    pieces.push_back(piece_of(releases, part, plan, less_private));
  return pieces;
}

}  // namespace ghostshard::accountant
