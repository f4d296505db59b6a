#include "accountant/grid_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "accountant/outcomes.h"
#include "accountant/regrid.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFewestSteps = 256;
constexpr double kFewestInBlock = 16;  // the losses of fewer are lumps, which merging puts together badly
constexpr double kOutside = 48;        // e^-48 of the tilted measure may lie outside the fine window
constexpr size_t kFewestPoints = size_t{1} << 14;
constexpr double kLargestExponent = 500;
// In units of 1/standard deviation of a block: where tails are bounded.
constexpr std::array<double, 7> kTailShares = {1.5, 3, 5, 7, 9.8, 14, 22};

double added_up(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// log E[e^(theta·loss)] of so many executions, tilted.
double tilted_moment(const Sketches& sketches, const std::vector<double>& counts, double c, double theta) {
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) sum += counts[i] * (sketches.at(i, c + theta).log_m - sketches.at(i, c).log_m);
  return sum;
}

double deviation(const Sketches& sketches, const std::vector<double>& counts, double c) {
  double variance = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) variance += counts[i] * sketches.at(i, c).variance;
  return std::sqrt(std::max(variance, 1e-30));
}

// Where all but e^-kOutside of so many executions lie.
std::pair<double, double> window_of(const Sketches& sketches, const std::vector<double>& counts, double c) {
  const double unit = 1 / deviation(sketches, counts, c);
  double start = -kInfinity;
  double end = kInfinity;
  for (const double share : kTailShares) {
    const double theta = share * unit;
    end = std::min(end, (tilted_moment(sketches, counts, c, theta) + kOutside) / theta);
    start = std::max(start, -(tilted_moment(sketches, counts, c, -theta) + kOutside) / theta);
  }
  return {start, end};
}

}  // namespace

namespace {

// So many blocks, and how long a window one needs; the mesh is not chosen yet.
BlockPlan in_blocks(const Sketches& sketches, const std::vector<ComposedRelease>& phases, double c, double blocks,
                    double* period) {
  BlockPlan plan{};
  plan.blocks = blocks;
  for (const ComposedRelease& phase : phases) {
    plan.in_block.push_back(std::floor(phase.count / plan.blocks));
    plan.rest.push_back(phase.count - plan.blocks * plan.in_block.back());
  }
  const auto [start, end] = window_of(sketches, plan.in_block, c);
  *period = std::max(end - start, 1.1 * sketches.largest_range());
  plan.start_of_block = start;
  if (added_up(plan.rest) > 0) {
    const auto [rest_start, rest_end] = window_of(sketches, plan.rest, c);
    *period = std::max(*period, rest_end - rest_start);
    plan.start_of_rest = rest_start;
  }
  return plan;
}

}  // namespace

std::optional<BlockPlan> plan_blocks(const Sketches& sketches, const std::vector<ComposedRelease>& phases,
                                     const Shape& shape, double tolerance, size_t most_points) {
  double most = 0;
  for (const ComposedRelease& phase : phases) most = std::max(most, phase.count);
  if (!(most >= kFewestSteps && most < 1e15)) return std::nullopt;
  const double c = shape.grid.c;
  const double whole = shape.grid.h * static_cast<double>(shape.grid.n);
  // The window of a block shrinks no further than that of one release, or the last few of them: the best number is not
  // always the square root.
  BlockPlan plan{};
  double period = 0;
  double least = kInfinity;
  const auto added = [&](const BlockPlan& candidate, double length, size_t points) {
    const auto count = static_cast<double>(points);
    const double coarse = (candidate.blocks + 1) * whole / count * whole / count / 6;
    return (1 + c) / 2 * (sketches.added_variance(length / count) + coarse);
  };
  const auto consider = [&](double blocks) {
    if (!(kFewestInBlock * blocks <= most)) return;
    double length = 0;
    const BlockPlan candidate = in_blocks(sketches, phases, c, blocks, &length);
    if (!(length < whole / 2)) return;
    // A whole number of fine steps in a coarse one: then all merged neighbours are cut alike.
    length = whole / std::floor(whole / length);
    if (!((c + 1) * length < kLargestExponent)) return;
    const double adds = added(candidate, length, most_points);
    if (adds < least) {
      least = adds;
      plan = candidate;
      period = length;
    }
  };
  for (const double share : {1.0, 2.0, 4.0, 8.0, 0.5}) {
    const double blocks = std::round(share * std::sqrt(most));
    consider(blocks);
    // Near it, what leaves little of one phase: what is left over has a window too.
    for (const ComposedRelease& phase : phases)
      if (phase.count >= blocks) consider(std::floor(phase.count / std::ceil(phase.count / blocks)));
  }
  if (!(least < kInfinity)) return std::nullopt;
  size_t n = kFewestPoints;
  while (n < most_points && added(plan, period, n) > tolerance) n *= 2;
  plan.h = period / static_cast<double>(n);
  plan.coarse = shape;
  plan.coarse.grid.n = n;
  plan.coarse.grid.h = whole / static_cast<double>(n);
  const double first = static_cast<double>(shape.start + 2) * shape.grid.h;
  plan.coarse.start = static_cast<int64_t>(std::floor(first / plan.coarse.grid.h)) - 2;
  return plan;
}

std::vector<Piece> pieces_of_blocks(Direction direction, const std::vector<ComposedRelease>& phases,
                                    const BlockPlan& plan, bool less_private) {
  Shape fine_shape = plan.coarse;
  fine_shape.grid.h = plan.h;
  const size_t n = plan.coarse.grid.n;
  const double c = plan.coarse.grid.c;
  std::vector<Piece> releases = pieces_of_phases(direction, phases, fine_shape, less_private);
  struct Part {
    const std::vector<double>& counts;
    double start, times;
  };
  std::vector<Part> parts = {{plan.in_block, plan.start_of_block, plan.blocks}};
  if (added_up(plan.rest) > 0) parts.push_back({plan.rest, plan.start_of_rest, 1});

  std::vector<Piece> pieces;
  std::vector<double> errors;
  double log_others = 0;  // of the norms of all factors
  for (const Part& part : parts) {
    FineMasses fine{.first = 0, .h = plan.h, .c = c, .log_scale = 0, .mass = {}};
    double dropped = 0;
    CircularPower power(n);
    double shift = 0;
    double variance = 0;
    struct Point {
      double loss, mass;
    };
    std::vector<std::vector<Point>> points(releases.size());
    for (size_t i = 0; i < releases.size(); ++i) {
      const TiltedCells& cells = releases[i].cells;
      const double count = part.counts[i];
      if (!(count > 0)) continue;
      power.add(cells, count);
      fine.log_scale += count * releases[i].log_scale;
      dropped += count * cells.dropped;
      shift += count * cells.shift;
      // One release's losses lie within a period, from the least on.
      const auto [low, high] =
          losses_of(direction, phases[i].release, fine_shape.phases[i].low, fine_shape.phases[i].high);
      const auto first = static_cast<int64_t>(std::floor(low / plan.h)) - 8;
      if (!((high - low) / plan.h + 24 < static_cast<double>(n))) return {};
      double mean = 0;
      double square = 0;
      for (size_t j = 0; j < n; ++j) {
        const int64_t k = first + static_cast<int64_t>(j);
        const double mass = cells.mass[static_cast<size_t>(k) & (n - 1)];
        if (!(mass > 0)) continue;
        const double loss = (static_cast<double>(k) + cells.shift) * plan.h;
        points[i].push_back({loss, mass});
        mean += mass * loss;
        square += mass * loss * loss;
      }
      variance += count * std::max(0.0, square - mean * mean);
    }
    auto density = std::move(power).density(plan.h, c);
    const double whole = std::floor(shift);
    const auto start = static_cast<int64_t>(std::floor(part.start / plan.h));
    fine.first = static_cast<double>(start) * plan.h + (shift - whole) * plan.h;
    fine.mass.resize(n);
    double total = 0;
    double squares = 0;
    for (size_t j = 0; j < n; ++j) {
      const int64_t k = start + static_cast<int64_t>(j) - static_cast<int64_t>(whole);
      fine.mass[j] = std::max(0.0, density.mass[static_cast<size_t>(k) & (n - 1)]);
      total += fine.mass[j];
      squares += fine.mass[j] * fine.mass[j];
    }
    // Chernoff: what lies outside the window, on either side.
    double before = 1;
    double beyond = 1;
    const double last = fine.first + plan.h * static_cast<double>(n);
    double log_one = 0;  // logarithm of the exact measure's total
    for (size_t i = 0; i < releases.size(); ++i) {
      double sum = 0;
      for (const Point& point : points[i]) sum += point.mass;
      if (part.counts[i] > 0) log_one += part.counts[i] * (std::log(sum) + 1e-12);
    }
    for (const double share : kTailShares)
      for (const double sign : {1.0, -1.0}) {
        const double theta = sign * share / std::sqrt(std::max(variance, 1e-30));
        double log_moment = 0;
        for (size_t i = 0; i < releases.size(); ++i) {
          if (!(part.counts[i] > 0)) continue;
          double sum = 0;
          for (const Point& point : points[i]) sum += point.mass * std::exp(theta * point.loss);
          log_moment += part.counts[i] * (std::log(sum) + 1e-12);
        }
        const double bound = std::exp(std::min(log_moment - theta * (sign > 0 ? last : fine.first) + 1e-6, 0.0));
        (sign > 0 ? beyond : before) = std::min(sign > 0 ? beyond : before, bound);
      }
    const double error = density.norm + 1.01 * density.relative * std::sqrt(squares) + 2 * (before + beyond);
    TiltedCells cells =
        less_private ? connected_dots(fine, plan.coarse.grid) : merged_neighbours(fine, plan.coarse.grid);
    errors.push_back(error * std::sqrt(plan.coarse.grid.h / plan.h) * 1.01);
    log_others += part.times * std::max({0.0, std::log(total), log_one});
    cells.dropped = dropped;
    pieces.push_back({std::move(cells), part.times, fine.log_scale});
  }
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].cells.norm = errors[i] * std::exp(log_others);
  return pieces;
}

}  // namespace ghostshard::accountant
