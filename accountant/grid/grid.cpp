#include "accountant/grid/grid.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <sstream>

#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/grid/grid_blocks.h"
#include "accountant/grid/grid_side.h"
#include "accountant/grid/grid_window.h"
#include "accountant/threads/beside.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kFewestPoints = size_t{1} << 12;

constexpr size_t kSmallPoints = size_t{1} << 15;
constexpr size_t kMostPoints = size_t{1} << 21;
// What the mesh may add to epsilon: no more than this share of it.
constexpr double kRelativeTolerance = 1e-3;
constexpr double kNoticed = 1e-3;        // on a small grid an epsilon below this is as good as this
constexpr double kNoticedInTime = 2e-4;  // and if work is limited: a bracket is then at most 1e-6 wide
constexpr double kWide = 5e-5;           // a bracket that other means are tried for
constexpr size_t kFewestRounded = size_t{1} << 18;
constexpr double kMostCells = 4e6;  // half a second of each
constexpr double kFirstTolerance = 1e-5;
constexpr double kByTwice = 3;      // narrower, by twice the points, about
constexpr double kNarrowing = 1.3;  // a bracket, with at least this power of the points, or
constexpr double kNearly = 1.25;    // so much more
constexpr size_t kMostTimes = 64;
constexpr double kNarrow = 2e-5;  // a bracket that is not worth more than kEnoughPoints
constexpr size_t kEnoughPoints = size_t{1} << 18;
constexpr double kLeastTolerance = 1e-9;
constexpr double kDeltaTolerance = 1e-5;  // relative, of delta

// Blocks, if they need far fewer points, or add less to epsilon than the points allowed without them.
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

// The largest epsilon found at which delta certainly exceeds this one, 0 if there is none.
double lower_end(const Side& lower, double c, Bracket within, Delta delta) {
  const auto holds = [&](double epsilon) { return lower.delta(epsilon) - alias(lower, c, epsilon) >= delta.value(); };
  // From the right: towards the window's start the alias grows.
  for (double below = 1e-10 * within.upper + 1e-13; below < 1.1 * within.upper; below *= 2) {
    const double candidate = std::max(within.lower, within.upper - below);
    if (holds(candidate)) return std::min(bisect(candidate, within.upper, holds).first, within.upper);
    if (candidate == within.lower) break;
  }
  return 0;
}

// Looks for epsilon: first with a coarse mesh that says where it lies, then with finer ones until the bracket is as
// narrow as was asked for, or the mesh does not decide any more.
class EpsilonSearch {
 public:
  EpsilonSearch(Direction direction, const std::vector<ComposedRelease>& phases, Delta delta,
                const GridRequest& request)
      : direction_(direction),
        phases_(phases),
        delta_(delta),
        request_(request),
        log_delta_(std::log(delta.value())),
        sketches_(direction, phases, log_delta_),
        guess_(guess_epsilon(sketches_, log_delta_)),
        most_(request.size == GridSize::kSmall ? kSmallPoints : most_points(phases.size())),
        margin_(15 / guess_.c),
        finest_(most_),
        allowed_(most_) {}

  std::optional<DirectionBound> run() {
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      wanted_ = wanted();
      if (!located_) tolerance_ = std::max(0.5 / guess_.c, wanted_);
      auto shape = next_shape(allowed_, least_);
      for (size_t n = kMostPoints;
           shape && shape->grid.n > kFewestPoints && work_ + work_of(*shape) > request_.most_work; n /= 2)
        if (n < shape->grid.n) shape = next_shape(n, std::min(n, least_));
      if (!shape) return std::nullopt;
      work_ += work_of(*shape);
      if (const auto found = attempt_on(*shape)) return found;
    }
    return std::nullopt;
  }

 private:
  static constexpr int kMostAttempts = 12;

  std::optional<Shape> next_shape(size_t most, size_t least) const {
    return shape_for(sketches_, guess_.c, std::max(0.0, guess_.epsilon - margin_), guess_.epsilon, log_delta_,
                     tolerance_, most, least);
  }

  // The cells of each phase, as many as there are points if not more, and the points, on both sides.
  double work_of(const Shape& shape) const {
    const auto points = static_cast<double>(shape.grid.n);
    const double cells = std::max(points, sketches_.largest_range() / shape.grid.h);
    const double sides = located_ && !request_.upper_only ? 2 : 1;
    return sides * (cells * static_cast<double>(phases_.size()) + points);
  }

  double least_noticed() const {
    if (request_.size == GridSize::kSmall) return kNoticed;
    return request_.most_work < kInfinity ? kNoticedInTime : 0;
  }
  // What the mesh may add to epsilon.
  double wanted() const {
    const double of_epsilon = kRelativeTolerance * std::max(guess_.epsilon, least_noticed());
    return std::min(request_.added_by_mesh * std::max(1.0, guess_.epsilon / 100), of_epsilon) + kLeastTolerance;
  }

  // Each phase of a block has a fine grid too, of as many points.
  size_t most_for_blocks() const {
    size_t most = most_;
    const auto work = [&] { return 4 * static_cast<double>(most * (phases_.size() + 1)); };
    while (most > kFewestPoints && work() > request_.most_work) most /= 2;
    return most;
  }

  Side side(const Shape& shape, const std::optional<BlockPlan>& plan, bool less_private) const {
    return Side(plan ? pieces_of_blocks(direction_, phases_, *plan, less_private)
                     : pieces_of_phases(direction_, phases_, shape, less_private),
                plan ? plan->coarse : shape, less_private);
  }

  // The answer, or nothing if there is to be another attempt.
  std::optional<DirectionBound> attempt_on(const Shape& shape) {
    const auto plan = located_ && !blocks_failed_
                          ? blocks_for(sketches_, phases_, shape, log_delta_, tolerance_, most_for_blocks())
                          : std::nullopt;
    const Shape& used = plan ? plan->coarse : shape;
    std::future<Side> other;
    if (located_ && !request_.upper_only) other = beside([&] { return side(shape, plan, false); });
    const Side upper = side(shape, plan, true);
    const double h = used.grid.h;
    const double first = std::max(0.0, (static_cast<double>(used.start) + 2) * h);
    const double last = (static_cast<double>(used.start) + static_cast<double>(used.grid.n) - 4) * h;
    const auto too_small = [&](double epsilon) { return !(upper.delta(epsilon) <= delta_.value()); };
    if (plan && too_small(last)) {
      blocks_failed_ = true;
      return std::nullopt;
    }
    if (!(last > first) || too_small(last)) {  // it lies further to the right, or rounding hides it
      guess_.epsilon = std::max(2 * guess_.epsilon, last);
      guess_.c = sketches_.saddle_of(guess_.epsilon);
      return std::nullopt;
    }
    DirectionBound bound{0, 0, 0, describe(used, plan)};
    if (!too_small(first)) {
      if (first == 0) return bound;
      margin_ *= 4;  // further to the left
      return std::nullopt;
    }
    bound.upper = bisect(first, last, too_small).second;
    if (!located_) {
      locate(bound.upper, shape, h);
      return std::nullopt;
    }
    if (!request_.upper_only) bound.lower = lower_end(other.get(), used.grid.c, {first, bound.upper}, delta_);
    const double width = close(bound);
    if (again(bound, width, shape, plan, upper)) return std::nullopt;
    return bound;
  }

  // The place that the coarse mesh gave, less the epsilon that this mesh may have added.
  void locate(double upper, const Shape& shape, double h) {
    located_ = true;
    const double added = std::min((1 + shape.grid.c) * sketches_.added_variance(h), upper);
    guess_.epsilon = upper - added / 2;
    guess_.c = sketches_.saddle_of(guess_.epsilon);
    margin_ = 8 / guess_.c + added + 4 * h;
    // Where work is limited, the first attempt is no finer than what is asked for.
    const bool limited = request_.most_work < kInfinity;
    tolerance_ = std::min(kFirstTolerance * (limited ? std::max(1.0, guess_.epsilon / 100) : 1.0),
                          kRelativeTolerance * std::max(guess_.epsilon, least_noticed())) +
                 kLeastTolerance;
  }

  // Cuts the bound by the attempt before, and returns how wide it was by itself. If only the upper end is sought, a
  // quarter of the mesh adds a sixteenth: a quarter of what has changed is left.
  double close(DirectionBound& bound) const {
    double width = bound.upper - bound.lower;
    if (request_.upper_only) width = before_ ? std::abs(before_->upper - bound.upper) / 4 : kInfinity;
    if (before_) {
      bound.lower = std::max(bound.lower, before_->lower);
      bound.upper = std::min(bound.upper, before_->upper);
    }
    bound.estimate = request_.upper_only ? bound.upper : bound.lower + (bound.upper - bound.lower) / 2;
    return width;
  }

  // Whether another attempt promises a narrower bracket; it is prepared then.
  bool again(const DirectionBound& bound, double width, const Shape& shape, const std::optional<BlockPlan>& plan,
             const Side& upper) {
    const GridShape& grid = plan ? plan->coarse.grid : shape.grid;
    // A finer mesh, as long as it is the mesh that decides and not rounding.
    const bool helps = !before_ || request_.upper_only || width < 0.6 * (before_->upper - before_->lower);
    if (request_.size == GridSize::kLarge && width < kNarrow) finest_ = std::min(finest_, kEnoughPoints);
    // One release may need more cells than there are points: an unsampled Gaussian whose window is a part of its range.
    if (!plan && 4 * sketches_.largest_range() / grid.h > kMostCells) finest_ = grid.n;
    const auto affordable = [&](size_t times) {
      return work_ + static_cast<double>(times) * work_of(shape) <= request_.most_work;
    };
    if (width > 4 * wanted_ && grid.n < finest_ && helps && coarser_ == 0 && affordable(4)) {
      before_ = bound;
      const double aimed = std::clamp(request_.added_by_mesh * std::max(1.0, bound.upper / 100), wanted_, 4 * wanted_);
      // As many times the points as that may take, even if few releases decide delta, and the mesh adds little.
      size_t times = width <= kByTwice * aimed ? 2 : 4;
      while (!plan && times > 2 && times < kMostTimes && kNearly * std::pow(times, kNarrowing) < width / aimed &&
             2 * times * grid.n <= std::min(finest_, kEnoughPoints) && affordable(2 * times))
        times *= 2;
      tolerance_ /= 0.95 * static_cast<double>(times * times);
      least_ = times * grid.n;
      allowed_ = std::min(finest_, std::max(least_, 8 * grid.n));  // rounding may decide from somewhere on
      guess_.epsilon = bound.upper;
      margin_ = 8 / guess_.c + width;
      return true;
    }
    // A block's losses may be lumps on the coarse mesh.
    const double without = sketches_.added_by_mesh(shape.grid.h, shape.grid.c);
    if (plan && width > kWide && without < width / 2 && !request_.upper_only && affordable(4)) {
      before_ = bound;
      blocks_failed_ = true;
      return true;
    }
    // With rare large losses rounding may decide, and there is less of it on fewer points: two coarser grids.
    const bool rounding_decides = upper.rounding_share(bound.upper) / grid.c > width / 8;
    if (!plan && width > kWide && rounding_decides && grid.n >= kFewestRounded && coarser_ < 2) {
      ++coarser_;
      before_ = bound;
      allowed_ = grid.n / 4;
      least_ = 0;
      return true;
    }
    return false;
  }

  Direction direction_;
  const std::vector<ComposedRelease>& phases_;
  Delta delta_;
  GridRequest request_;
  double log_delta_;
  Sketches sketches_;
  Guess guess_;
  size_t most_;
  double margin_;  // of the window, before the guess
  double tolerance_ = 0, wanted_ = 0;
  size_t least_ = 0;
  size_t finest_;
  size_t allowed_;  // in the next attempt
  int coarser_ = 0;
  bool blocks_failed_ = false;
  double work_ = 0;       // of all attempts, this one included
  bool located_ = false;  // by a coarse mesh, whatever the first guess was worth
  std::optional<DirectionBound> before_;
};

}  // namespace

std::optional<DirectionBound> grid_epsilon(Direction direction, const std::vector<ComposedRelease>& phases, Delta delta,
                                           const GridRequest& request) {
  return EpsilonSearch(direction, phases, delta, request).run();
}

std::optional<DirectionBound> grid_delta(Direction direction, const std::vector<ComposedRelease>& phases,
                                         double epsilon, GridSize size) {
  // Losses are rare in comparison with delta: a first grid gives its size.
  const bool table =
      std::any_of(phases.begin(), phases.end(), [](const ComposedRelease& phase) { return phase.is_table(); });
  double log_delta = -9;  // of a table: any that finds delta to within some powers of ten
  if (!table)
    log_delta = std::min(-1.0, chernoff_log_delta(direction, phases,
                                                  saddle_of_epsilon(direction, phases, epsilon).value_or(1), epsilon)) -
                12;
  const size_t most = size == GridSize::kSmall ? kSmallPoints : kMostPoints;
  for (int attempt = 0; attempt < 4; ++attempt) {
    const Sketches sketches(direction, phases, log_delta);
    const double c = sketches.saddle_of(epsilon);
    const bool last = attempt > 0;
    const auto shape = shape_for(sketches, c, epsilon - 4 / c * 1e-3, epsilon, log_delta, kDeltaTolerance / c,
                                 last ? most : kFewestPoints, last && table ? std::min(most, kEnoughPoints) : 0);
    if (!shape) return std::nullopt;
    const auto side = [&](bool less_private) {
      return Side(pieces_of_phases(direction, phases, *shape, less_private), *shape, less_private);
    };
    std::future<Side> other;
    if (last) other = beside([&] { return side(false); });
    const Side upper = side(true);
    DirectionBound bound{0, 0, 1, describe(*shape)};
    bound.upper = std::min(1.0, upper.delta(epsilon));
    if (!last) {
      log_delta = std::min(std::log(std::max(bound.upper, 1e-300)), 0.0);
      continue;
    }
    const Side lower = other.get();
    const double found = lower.delta(epsilon) - alias(lower, shape->grid.c, epsilon);
    bound.lower = found > 0 ? std::min(found, bound.upper) : 0;  // no number says nothing
    bound.estimate = bound.lower + (bound.upper - bound.lower) / 2;
    return bound;
  }
  return std::nullopt;
}

}  // namespace ghostshard::accountant
