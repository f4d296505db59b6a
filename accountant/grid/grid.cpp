#include "accountant/grid/grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/grid/grid_blocks.h"
#include "accountant/grid/grid_side.h"
#include "accountant/grid/grid_window.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kFewestPoints = size_t{1} << 12;

constexpr size_t kSmallPoints = size_t{1} << 15;
constexpr size_t kMostPoints = size_t{1} << 21;
// What the mesh may add to epsilon: no more than this share of it.
constexpr double kRelativeTolerance = 1e-3;
constexpr double kNoticed = 1e-3;  // on a small grid an epsilon below this is as good as this
constexpr double kWide = 5e-5;     // a bracket that other means are tried for
constexpr size_t kFewestRounded = size_t{1} << 18;
constexpr double kMostCells = 4e6;  // half a second of each
constexpr double kFirstTolerance = 1e-5;
constexpr double kNarrow = 2e-5;  // a bracket that is not worth more than kEnoughPoints
constexpr size_t kEnoughPoints = size_t{1} << 18;
constexpr double kLeastTolerance = 1e-9;
constexpr double kDeltaTolerance = 1e-5;  // relative, of delta

// Blocks where they need far fewer points, or add less than so few points as there may be without.
std::optional<BlockPlan> blocks_for(const Sketches& sketches, const std::vector<ComposedRelease>& phases,
                                    const Shape& shape, double log_delta, double tolerance, size_t most) {
  auto plan = plan_blocks(sketches, phases, shape, log_delta, tolerance, most);
  if (!plan) return plan;
  const double added = sketches.added_by_mesh(shape.grid.h, shape.grid.c);
  const bool better = added > tolerance && plan->added < added / 2;
  if (!better && 4 * plan->coarse.grid.n > shape.grid.n) plan.reset();
  return plan;
}

// Each phase is transformed by itself: so much together.
size_t most_points(size_t phases) { return phases <= 3 ? kMostPoints : kMostPoints / 2; }

std::string describe(const Shape& shape, const std::optional<BlockPlan>& plan = std::nullopt) {
  std::ostringstream text;
  if (plan) text << plan->blocks << " blocks, each on a mesh of " << plan->h << ", composed on a ";
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

// The largest epsilon found at which delta certainly exceeds this one, 0 where there is none.
double lower_end(const Side& upper, const Side& lower, double c, Bracket within, Delta delta) {
  const auto holds = [&](double epsilon) {
    return lower.delta(epsilon) - alias(upper, lower, c, epsilon) >= delta.value();
  };
  // From the right: towards the window's start the alias grows.
  for (double below = 1e-10 * within.upper + 1e-13; below < 1.1 * within.upper; below *= 2) {
    const double candidate = std::max(within.lower, within.upper - below);
    if (holds(candidate)) return std::min(bisect(candidate, within.upper, holds).first, within.upper);
    if (candidate == within.lower) break;
  }
  return 0;
}

}  // namespace

std::optional<DirectionBound> grid_epsilon(Direction direction, const std::vector<ComposedRelease>& phases, Delta delta,
                                           const GridRequest& request) {
  const auto [size, added_by_mesh, upper_only] = request;
  const double log_delta = std::log(delta.value());
  const Sketches sketches(direction, phases, log_delta);
  Guess guess = guess_epsilon(sketches, log_delta);
  const size_t most = size == GridSize::kSmall ? kSmallPoints : most_points(phases.size());
  double margin = 15 / guess.c;
  bool blocks_failed = false;
  bool located = false;  // by a coarse mesh, whatever the first guess was worth
  double tolerance = 0;
  size_t least = 0;
  size_t finest = most;
  size_t allowed = most;  // in the next attempt
  int coarser = 0;
  std::optional<DirectionBound> before;
  for (int attempt = 0; attempt < 12; ++attempt) {
    const double least_noticed = size == GridSize::kSmall ? kNoticed : 0;
    const double of_epsilon = kRelativeTolerance * std::max(guess.epsilon, least_noticed);
    const double wanted = std::min(added_by_mesh * std::max(1.0, guess.epsilon / 100), of_epsilon) + kLeastTolerance;
    if (!located) tolerance = std::max(0.5 / guess.c, wanted);
    const auto shape = shape_for(sketches, guess.c, std::max(0.0, guess.epsilon - margin), guess.epsilon, log_delta,
                                 tolerance, allowed, least);
    if (!shape) return std::nullopt;
    const auto plan =
        located && !blocks_failed ? blocks_for(sketches, phases, *shape, log_delta, tolerance, most) : std::nullopt;
    const Shape& used = plan ? plan->coarse : *shape;
    const auto side = [&](bool less_private) {
      return Side(plan ? pieces_of_blocks(direction, phases, *plan, less_private)
                       : pieces_of_phases(direction, phases, *shape, less_private),
                  used, less_private);
    };
    const Side upper = side(true);
    const double h = used.grid.h;
    const double first = std::max(0.0, (static_cast<double>(used.start) + 2) * h);
    const double last = (static_cast<double>(used.start) + static_cast<double>(used.grid.n) - 4) * h;
    const auto too_small = [&](double epsilon) { return !(upper.delta(epsilon) <= delta.value()); };
    if (plan && too_small(last)) {
      blocks_failed = true;
      continue;
    }
    if (!(last > first) || too_small(last)) {  // it lies further to the right, or rounding hides it
      guess.epsilon = std::max(2 * guess.epsilon, last);
      guess.c = sketches.saddle_of(guess.epsilon);
      continue;
    }
    DirectionBound bound{0, 0, 0, describe(used, plan)};
    if (!too_small(first)) {
      if (first == 0) return bound;
      margin *= 4;  // further to the left
      continue;
    }
    bound.upper = bisect(first, last, too_small).second;
    if (!located) {
      located = true;
      // Where the coarse mesh put it, less what that mesh may have added.
      const double added = std::min((1 + shape->grid.c) * sketches.added_variance(h), bound.upper);
      guess.epsilon = bound.upper - added / 2;
      guess.c = sketches.saddle_of(guess.epsilon);
      margin = 8 / guess.c + added + 4 * h;
      tolerance =
          std::min(kFirstTolerance, kRelativeTolerance * std::max(guess.epsilon, least_noticed)) + kLeastTolerance;
      continue;
    }
    double width = kInfinity;
    if (upper_only) {
      bound.estimate = bound.upper;
      // A quarter of the mesh adds a sixteenth.
      if (before) width = std::abs(before->upper - bound.upper) / 4;
    } else {
      bound.lower = lower_end(upper, side(false), used.grid.c, {first, bound.upper}, delta);
      bound.estimate = bound.lower + (bound.upper - bound.lower) / 2;
      width = bound.upper - bound.lower;
    }
    if (before) {
      bound.lower = std::max(bound.lower, before->lower);
      bound.upper = std::min(bound.upper, before->upper);
      bound.estimate = upper_only ? bound.upper : bound.lower + (bound.upper - bound.lower) / 2;
    }
    // A finer mesh, as long as it is the mesh that decides and not rounding.
    const bool helps = !before || upper_only || width < 0.6 * (before->upper - before->lower);
    if (size == GridSize::kLarge && width < kNarrow) finest = std::min(finest, kEnoughPoints);
    // One release may need more cells than there are points: an unsampled Gaussian whose window is a part of its range.
    if (!plan && 4 * sketches.largest_range() / used.grid.h > kMostCells) finest = used.grid.n;
    if (width > 4 * wanted && used.grid.n < finest && helps && coarser == 0) {
      before = bound;
      tolerance /= 15;  // twice the points, twice; also where few releases say what delta is, and the mesh adds little
      least = 4 * used.grid.n;
      allowed = std::min(finest, 8 * used.grid.n);  // rounding may decide from somewhere on
      guess.epsilon = bound.upper;
      margin = 8 / guess.c + width;
      continue;
    }
    // A block's losses may be lumps on the coarse mesh.
    const double without = sketches.added_by_mesh(shape->grid.h, shape->grid.c);
    if (plan && width > kWide && without < width / 2 && !upper_only) {
      before = bound;
      blocks_failed = true;
      continue;
    }
    // With rare large losses rounding may decide, and there is less of it on fewer points: two coarser grids.
    const bool rounding_decides = upper.rounding_share(bound.upper) / used.grid.c > width / 8;
    if (!plan && width > kWide && rounding_decides && used.grid.n >= kFewestRounded && coarser < 2) {
      ++coarser;
      before = bound;
      allowed = used.grid.n / 4;
      least = 0;
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
    const Side upper(pieces_of_phases(direction, phases, *shape, true), *shape, true);
    DirectionBound bound{0, 0, 1, describe(*shape)};
    bound.upper = std::min(1.0, upper.delta(epsilon));
    if (!last) {
      log_delta = std::min(std::log(std::max(bound.upper, 1e-300)), 0.0);
      continue;
    }
    const Side lower(pieces_of_phases(direction, phases, *shape, false), *shape, false);
    bound.lower = std::clamp(lower.delta(epsilon) - alias(upper, lower, shape->grid.c, epsilon), 0.0, bound.upper);
    bound.estimate = bound.lower + (bound.upper - bound.lower) / 2;
    return bound;
  }
  return std::nullopt;
}

}  // namespace ghostshard::accountant
