#include "accountant/grid_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFewestSteps = 256;
constexpr double kOutside = 48;  // e^-48 of the tilted measure may lie outside the fine window
constexpr size_t kFewestPoints = size_t{1} << 14;
constexpr double kLargestExponent = 500;
constexpr int kRounds = 8;  // of evening out
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

// Of some executions of all phases, on the fine grid: mass[j] at first + j·h, times e^(c·loss - log_scale).
struct Fine {
  double first, h, c, log_scale;
  std::vector<double> mass;
  double error = 0;    // 2-norm of what the exact one differs by
  double dropped = 0;  // probability of an infinite loss
};

// What of the moments is wanted (pld_cells.h), measured: nothing but the given numbers counts. 1e-9 for its rounding.
void measure(TiltedCells& cells, const std::vector<std::pair<int64_t, double>>& placed, double c, double h,
             double log_scale) {
  const auto log_moment = [&](double other) {
    double top = -kInfinity;
    for (const auto& [k, mass] : placed)
      if (mass > 0) top = std::max(top, std::log(mass) + (other - c) * (static_cast<double>(k) + cells.shift) * h);
    double sum = 0;
    for (const auto& [k, mass] : placed)
      if (mass > 0) sum += std::exp(std::log(mass) + (other - c) * (static_cast<double>(k) + cells.shift) * h - top);
    return top + std::log(sum) + log_scale + 1e-9 * (1 + std::abs(top) + std::abs(log_scale));
  };
  for (const double share : kMomentShares) cells.moments.emplace_back(c * share, log_moment(c * share));
  cells.log_total = log_moment(0);
}

void place(TiltedCells& cells, const std::vector<std::pair<int64_t, double>>& placed, size_t n) {
  cells.mass.assign(n, 0);
  for (const auto& [k, mass] : placed) cells.mass[static_cast<size_t>(k) & (n - 1)] += mass;
}

// Each loss is split between its neighbours on the coarse grid so that P and Q keep their totals.
TiltedCells connect_dots(const Fine& fine, const GridShape& grid) {
  const auto low = static_cast<int64_t>(std::floor(fine.first / grid.h)) - 1;
  const double last = fine.first + fine.h * static_cast<double>(fine.mass.size());
  std::vector<std::pair<int64_t, double>> placed;
  for (int64_t k = low; k <= static_cast<int64_t>(std::floor(last / grid.h)) + 2; ++k) placed.emplace_back(k, 0.0);
  const double width = -std::expm1(-grid.h);
  for (size_t j = 0; j < fine.mass.size(); ++j) {
    if (!(fine.mass[j] > 0)) continue;
    const double loss = fine.first + fine.h * static_cast<double>(j);
    const auto k = static_cast<int64_t>(std::floor(loss / grid.h));
    const double above = std::max(0.0, loss - static_cast<double>(k) * grid.h);
    // Roundings of the loss, of up to 1e6 steps of the mesh, to the right.
    const double share =
        std::clamp(-std::expm1(-above) / width + 8 * kRounding * (1 + std::abs(loss) / grid.h), 0.0, 1.0);
    const auto index = static_cast<size_t>(k - low);
    placed[index].second += fine.mass[j] * (1 - share) * std::exp(-fine.c * above);
    placed[index + 1].second += fine.mass[j] * share * std::exp(fine.c * (grid.h - above));
  }
  TiltedCells cells;
  measure(cells, placed, fine.c, grid.h, fine.log_scale);
  place(cells, placed, grid.n);
  const double span = std::abs(fine.first) + std::abs(last);
  cells.relative = kRounding * (24 + 2 * grid.h / fine.h + 8 * fine.c * span);
  return cells;
}

// Neighbours are merged into one outcome of loss log(P/Q), for which the boundaries between them (which may cut through
// a point: an outcome may be told apart at random) are moved until it lies on the coarse grid, but for little.
TiltedCells merge(const Fine& fine, const GridShape& grid) {
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
  const auto cost_at = [&](double below) {
    double cost = 0;
    for (size_t i = 0; i < count; ++i) {
      const double above = groups[i].excess + below;
      if (groups[i].p > 0) cost += groups[i].p * std::exp(fine.c * level(i)) * (above >= 0 ? above : 1 + above);
    }
    return cost;
  };
  const double below = cheapest_power_of_half(0, 120, cost_at);
  TiltedCells cells;
  cells.shift = -below;
  std::vector<std::pair<int64_t, double>> placed;
  for (size_t i = 0; i < count; ++i) {
    if (!(groups[i].excess >= -below - 1)) continue;  // what is left out is sound
    const bool fits = groups[i].excess >= -below;
    const double away = level(i) - (below + (fits ? 0 : 1)) * grid.h;
    placed.emplace_back(low + static_cast<int64_t>(i) - (fits ? 0 : 1), groups[i].p * std::exp(fine.c * away));
  }
  measure(cells, placed, fine.c, grid.h, fine.log_scale);
  place(cells, placed, grid.n);
  cells.relative = kRounding * (40 + 2 * ratio + 8 * fine.c * (last - fine.first));
  return cells;
}

}  // namespace

std::optional<BlockPlan> plan_blocks(const Sketches& sketches, const std::vector<ComposedRelease>& phases,
                                     const Shape& shape, double tolerance, size_t most_points) {
  double most = 0;
  for (const ComposedRelease& phase : phases) most = std::max(most, phase.count);
  if (!(most >= kFewestSteps && most < 1e15)) return std::nullopt;
  const double c = shape.grid.c;
  BlockPlan plan{};
  plan.blocks = std::round(std::sqrt(most));
  for (const ComposedRelease& phase : phases) {
    plan.in_block.push_back(std::floor(phase.count / plan.blocks));
    plan.rest.push_back(phase.count - plan.blocks * plan.in_block.back());
  }
  const auto [start, end] = window_of(sketches, plan.in_block, c);
  double period = std::max(end - start, 1.1 * sketches.largest_range());
  plan.start_of_block = start;
  if (added_up(plan.rest) > 0) {
    const auto [rest_start, rest_end] = window_of(sketches, plan.rest, c);
    period = std::max(period, rest_end - rest_start);
    plan.start_of_rest = rest_start;
  }
  const double whole = shape.grid.h * static_cast<double>(shape.grid.n);
  if (!(period < whole / 2) || !((c + 1) * period < kLargestExponent)) return std::nullopt;
  size_t n = kFewestPoints;
  const auto added = [&](size_t points) {
    const auto count = static_cast<double>(points);
    return c / 2 * (sketches.added_variance(period / count) + (plan.blocks + 1) * whole / count * whole / count / 4);
  };
  while (n < most_points && added(n) > tolerance) n *= 2;
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
    Fine fine{0, plan.h, c, 0, {}, 0, 0};
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
      fine.dropped += count * cells.dropped;
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
    fine.error = density.norm + 1.01 * density.relative * std::sqrt(squares) + 2 * (before + beyond);
    TiltedCells cells = less_private ? connect_dots(fine, plan.coarse.grid) : merge(fine, plan.coarse.grid);
    errors.push_back(fine.error * std::sqrt(plan.coarse.grid.h / plan.h) * 1.01);
    log_others += part.times * std::max({0.0, std::log(total), log_one});
    cells.dropped = fine.dropped;
    pieces.push_back({std::move(cells), part.times, fine.log_scale});
  }
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].cells.norm = errors[i] * std::exp(log_others);
  return pieces;
}

}  // namespace ghostshard::accountant
