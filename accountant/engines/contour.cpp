#include "accountant/engines/contour.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <limits>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "accountant/contour/line_bound.h"
#include "accountant/contour/schedule.h"
#include "accountant/engines/rdp.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/direction_bound.h"
#include "accountant/gaussian/event_table.h"
#include "accountant/gaussian/few_losses.h"
#include "accountant/gaussian/releases.h"
#include "accountant/gaussian/separated_outcomes.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/grid/grid.h"
#include "accountant/losses/event_pair.h"
#include "accountant/threads/beside.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Evaluations of an integrand, about a nanosecond each.
constexpr int64_t kQuickBudget = 4'000'000;
constexpr int64_t kTightBudget = 150'000'000;
constexpr int64_t kScheduleBudget = 400'000'000;  // of more phases than a grid takes
constexpr int64_t kLastBudget = 300'000'000;      // if the grid is no narrower than kWideGrid
constexpr double kWideGrid = 2e-5;                // or this share of epsilon
// What a search on a grid may cost (grid.h): half a second, or half of that if a unit is added, which rarely decides.
constexpr double kGridWork = 3e6;
// A line's bracket wider than this is cut by the grid's.
constexpr double kTightWidth = 1e-6;
// Or wider than this share of epsilon: a grid's mesh alone adds as much (kAddedByMesh), and of a large epsilon its
// rounding adds more.
constexpr double kTightShare = 2e-8;
constexpr double kTightShareOfLarge = 5e-8;
constexpr double kLargeEpsilon = 100;
constexpr double kTightDeltaWidth = 1e-5;  // relative
constexpr double kQuickWidth = 2e-3;       // relative
constexpr double kAddedByMesh = 1e-6;
constexpr double kAddedByQuickMesh = 1e-5;

// Distinct sampled releases up to which each counts as itself, and how many they are put together to beyond.
constexpr size_t kMostPhases = 400;
// More are a schedule; only if no line answers for that they are put together.
constexpr size_t kFewPhases = 16;
constexpr std::array<size_t, 3> kTogether = {400, 128, 8};
constexpr std::array<size_t, 2> kQuickTogether = {48, 8};
constexpr size_t kAll = std::numeric_limits<size_t>::max();
constexpr size_t kMostOnGrid = 24;  // phases: each is transformed by itself
using Phases = std::vector<ComposedRelease>;
using Result = DirectionBound;

template <class Bound>  // of epsilon
bool is_narrow(const Bound& bound) {
  return bound.upper - bound.lower <= kQuickWidth * (1e-3 + bound.lower);
}

bool is_tight(const Result& bound) {
  const double share = bound.lower > kLargeEpsilon ? kTightShareOfLarge : kTightShare;
  return bound.upper - bound.lower <= std::max(kTightWidth, share * bound.lower);
}

bool has_closed_form(const Phases& phases) { return phases.size() == 1 && phases.front().count == 1; }

// Tables are for the grid alone. Mixtures are for the line alone, since the grid knows single pairs, and so are phases
// too many for it.
bool for_line_alone(const Phases& phases) {
  if (has_table(phases)) return false;
  return phases.size() > kMostOnGrid + 1 ||
         std::any_of(phases.begin(), phases.end(), [](const ComposedRelease& phase) { return phase.is_mixture(); });
}

// Tables beside mixtures, or beside more phases than a grid takes: neither can bound them.
bool beyond_both(const Phases& phases) {
  if (!has_table(phases)) return false;
  const auto tables =
      std::count_if(phases.begin(), phases.end(), [](const ComposedRelease& phase) { return phase.is_table(); });
  return phases.size() > kMostOnGrid + 1 + static_cast<size_t>(tables) ||
         std::any_of(phases.begin(), phases.end(), [](const ComposedRelease& phase) { return phase.is_mixture(); });
}

EpsilonBound nothing() { return {.direction = "both", .detail = "total variation below delta"}; }

// More releases than a line should take one by one, of which none is a table or a mixture.
bool is_schedule(const Phases& phases) {
  return phases.size() > kFewPhases && std::none_of(phases.begin(), phases.end(), [](const ComposedRelease& phase) {
           return phase.is_table() || phase.is_mixture();
         });
}

// Finite losses reach no further than all the largest ones together, and an infinite one has a probability of its own.
Result beside_largest_losses(Direction direction, const Phases& phases, Delta delta, std::optional<Result> found) {
  double largest = 0;
  double infinite = 0;
  for (const ComposedRelease& phase : phases) {
    if (!phase.is_table()) {
      largest = kInfinity;
      break;
    }
    const LossAtoms& atoms = phase.atoms(direction, true);
    infinite += phase.count * atoms.infinite * (1 + 1e-12);
    if (!atoms.loss.empty()) largest += phase.count * atoms.loss.back();
  }
  largest = std::max(0.0, largest * (1 + 1e-14));
  if (!(infinite <= delta.value())) largest = kInfinity;
  if (!found) return {0, largest, largest, "the largest losses together"};
  found->upper = std::min(found->upper, largest);
  found->estimate = std::min(found->estimate, found->upper);
  return *found;
}

}  // namespace

void ContourAccountant::admit(const Event& event) {
  if (has_loss_table(event, adjacency())) {
    (void)event_table(event, adjacency(), name());
    return;
  }
  if (std::holds_alternative<TruncatedPoissonGaussianEvent>(event) && adjacency() != Adjacency::kReplaceOne)
    require_valid(event);
  else
    (void)sampled_gaussian(event, adjacency(), name());
}

RdpAccountant ContourAccountant::renyi() const { return rdp_of(charges(), adjacency()); }

// The larger of both neighbours' bounds, if they are two.
template <class Bound, class OfSchedule, class Of, class OfRenyi>
Bound ContourAccountant::over_neighbours(Effort effort, const OfSchedule& of_schedule, const Of& of,
                                         const OfRenyi& of_renyi) const {
  const std::span<const size_t> together =
      effort == Effort::kQuick ? std::span<const size_t>(kQuickTogether) : std::span<const size_t>(kTogether);
  const bool truncated = has_truncated(charges());
  // Any mechanism of these moments: its table says the most that it may reveal, and in a composition its moments may
  // say less.
  const bool by_moments = std::any_of(charges().begin(), charges().end(),
                                      [](const Charge& charge) { return is_bounded_by_moments(charge.event); });
  std::optional<Bound> worst;
  for (const bool larger_neighbour : {false, true}) {
    if (larger_neighbour && !(truncated && adjacency() == Adjacency::kAddOrRemove)) continue;
    const auto releases_at = [&](size_t attempt) {
      const size_t most = attempt == 0 ? kMostPhases : kMostOnGrid;
      return composed_releases(charges(), adjacency(), name(), most, together[attempt], larger_neighbour);
    };
    size_t attempt = 0;
    ReleaseBracket releases = composed_releases(charges(), adjacency(), name(), kAll, kAll, larger_neighbour);
    const size_t distinct = releases.less_private.size();
    const auto bounded = [&](const Phases& phases) { return of(phases, phases.size() < distinct); };
    std::optional<Bound> first;
    bool for_grid = false;  // no line will say anything
    if (is_schedule(releases.less_private)) first = of_schedule(releases.less_private, for_grid);
    const size_t last = together.size() - 1;
    if (for_grid && distinct > kMostPhases) attempt = last;
    const bool scheduled = first.has_value();
    std::optional<Bound> other;  // of more_private, if it has a say
    const bool has_lower = !truncated && !by_moments && effort != Effort::kUpper;
    const auto solve = [&] {
      releases = releases_at(attempt);
      const bool two = has_lower && !releases.exact();
      std::future<std::optional<Bound>> more_private;
      if (two) more_private = beside([&] { return bounded(releases.more_private); });
      first = bounded(releases.less_private);
      if (two) other = more_private.get();
    };
    if (!first) solve();
    while (!first && attempt < last) {
      attempt = for_grid ? last : attempt + 1;
      solve();
    }
    Bound found = first ? *std::move(first) : of_renyi();
    // Of a truncated run only the other releases have a lower end.
    if (truncated || by_moments || (effort == Effort::kUpper && !releases.exact()))
      found.lower = 0;
    else if (!releases.exact())
      found = with_lower_of(std::move(found), scheduled ? of_schedule(releases.more_private, for_grid) : other);
    if (by_moments) found = capped(std::move(found), of_renyi());
    // The mixture of pairs is loose under zero-out where truncation is frequent.
    if (truncated && adjacency() == Adjacency::kZeroOut && effort != Effort::kQuick)
      if (auto tables = of(with_truncated_tables(charges(), name(), kMostOnGrid, kTogether.back()), false))
        found = capped(std::move(found), *std::move(tables));
    if (!worst || found.upper > worst->upper) worst = std::move(found);
  }
  return *worst;
}

EpsilonBound ContourAccountant::bound_epsilon(Delta delta, Effort effort) const {
  std::optional<Saddle> like;
  return over_neighbours<EpsilonBound>(
      effort,
      [&](const Phases& phases, bool& for_grid) { return epsilon_of_schedule(phases, delta, effort, for_grid, like); },
      [&](const Phases& phases, bool grouped) { return epsilon_of(phases, delta, effort, grouped, like); },
      [&] { return renyi().epsilon(delta); });
}

std::optional<EpsilonBound> ContourAccountant::epsilon_of_schedule(const Phases& phases, Delta delta, Effort effort,
                                                                   bool& for_grid, std::optional<Saddle>& like) const {
  if (costs_nothing(phases, delta)) return nothing();
  if (beyond_resolution(phases)) return std::nullopt;
  const bool tight = effort != Effort::kQuick;
  const Schedule schedule(phases);
  const auto solve = [&](Direction direction) -> std::optional<Result> {
    const int64_t budget = tight ? kTightBudget : kQuickBudget;
    const auto sketched = schedule.sketched(direction, delta, budget);
    if (!sketched || !is_narrow(*sketched)) {
      for_grid = direction == Direction::kRemove;
      return std::nullopt;
    }
    if (direction == Direction::kRemove) like = schedule.saddle_at(direction, sketched->estimate);
    const auto found = schedule.epsilon(direction, delta, tight ? kScheduleBudget : budget, tight, *sketched);
    return found && is_narrow(*found) ? found : std::nullopt;
  };
  const auto remove = solve(Direction::kRemove);
  if (!remove) return std::nullopt;
  if (schedule.adding_is_no_worse(remove->upper, std::log(delta.value())))
    return larger_of<EpsilonBound>(*remove, Result{0, -1, 0, ""});
  const auto add = solve(Direction::kAdd);
  if (!add) return std::nullopt;
  return larger_of<EpsilonBound>(*remove, *add);
}

std::optional<EpsilonBound> ContourAccountant::epsilon_of(const Phases& phases, Delta delta, Effort effort,
                                                          bool grouped, const std::optional<Saddle>& like) const {
  if (costs_nothing(phases, delta)) return nothing();
  if (beyond_both(phases)) return std::nullopt;
  if (infinite_mass(phases) >= delta.value())
    return EpsilonBound{.upper = kInfinity, .direction = "both", .detail = "an infinite loss is likelier than delta"};
  if (beyond_resolution(phases) && !has_closed_form(phases)) return renyi().epsilon(delta);
  const bool thorough = effort != Effort::kQuick;
  // Of releases that were put together a finer bound is no better: what is lost is lost.
  const bool tight = thorough && !grouped;
  const bool upper_only = effort == Effort::kUpper;
  const auto solve = [&](Direction direction) -> std::optional<Result> {
    auto closed = closed_form_epsilon(direction, phases, delta);
    if (has_closed_form(phases) || (closed && is_tight(*closed))) return closed;
    LineProblem problem{.direction = direction, .phases = phases};
    if (direction == Direction::kRemove) problem.saddle = like;
    const int64_t budget = !thorough ? kQuickBudget : for_line_alone(phases) ? kScheduleBudget : kTightBudget;
    const auto line =
        has_table(phases) ? std::nullopt : shortest_line_epsilon(problem, delta, budget, thorough, is_tight);
    if (for_line_alone(phases)) {
      // Of many, fewer on a grid lose less.
      const bool lost = line && direction == Direction::kRemove && is_schedule(phases) && !is_narrow(*line);
      return lost ? std::nullopt : line;
    }
    if (line && (tight ? is_tight(*line) : is_narrow(*line))) return line;
    const GridRequest request{.size = tight ? GridSize::kLarge : GridSize::kSmall,
                              .added_by_mesh = tight && !has_table(phases) ? kAddedByMesh : kAddedByQuickMesh,
                              .upper_only = upper_only,
                              .most_work = has_table(phases)                 ? kInfinity
                                           : direction == Direction::kRemove ? kGridWork
                                                                             : kGridWork / 2};
    auto both = inside_both(line, grid_epsilon(direction, phases, delta, request));
    if (has_table(phases)) return beside_largest_losses(direction, phases, delta, both);
    if (both && !is_narrow(*both)) {
      // Where rounding decides, there is less of it on fewer points.
      GridRequest small = request;
      small.size = GridSize::kSmall;
      if (tight && !upper_only) both = inside_both(both, grid_epsilon(direction, phases, delta, small));
      if (both && direction == Direction::kRemove) both = inside_both(both, few_losses_bound(phases, delta));
    }
    if (!tight || line || (both && (upper_only || both->upper - both->lower <= kWideGrid * std::max(1.0, both->lower))))
      return both;
    return inside_both(line_epsilon({direction, phases}, delta, kLastBudget, tight), both);
  };
  const auto remove = solve(Direction::kRemove);
  if (!remove && for_line_alone(phases)) return std::nullopt;
  if (!remove) return renyi().epsilon(delta);
  EpsilonBound found;
  // If adding certainly lies within the bracket of removing, this bracket is one of the larger of both.
  if (adding_is_no_worse(phases, remove->upper, std::log(delta.value()))) {
    found = larger_of<EpsilonBound>(*remove, Result{0, -1, 0, ""});
  } else {
    auto add = solve(Direction::kAdd);
    if (!add) {  // neither engine: at most the largest loss, at most Rényi's bound
      const double most = std::min(largest_loss_of_adding(phases), renyi().epsilon(delta).upper);
      add = Result{0, most, most, "the largest loss or Rényi's bound"};
    }
    found = larger_of<EpsilonBound>(*remove, *add);
  }
  if (is_narrow(found)) return found;
  // Where even the grid is coarse, Rényi's bound may be the better one.
  return capped(std::move(found), renyi().epsilon(delta));
}

DeltaBound ContourAccountant::bound_delta(Epsilon epsilon, Effort effort) const {
  return over_neighbours<DeltaBound>(
      effort, [&](const Phases& phases, bool&) { return delta_of_schedule(phases, epsilon, effort); },
      [&](const Phases& phases, bool grouped) { return delta_of(phases, epsilon, effort, grouped); },
      [&] { return renyi().delta(epsilon); });
}

std::optional<DeltaBound> ContourAccountant::delta_of_schedule(const Phases& phases, Epsilon epsilon,
                                                               Effort effort) const {
  if (beyond_resolution(phases)) return std::nullopt;
  const bool tight = effort != Effort::kQuick;
  const Schedule schedule(phases);
  const auto solve = [&](Direction direction) -> std::optional<Result> {
    if (direction == Direction::kAdd && epsilon.value() >= largest_loss_of_adding(phases))
      return Result{0, 0, 0, "beyond the largest loss"};
    auto found = schedule.delta(direction, epsilon.value(), tight ? kTightBudget : kQuickBudget, tight);
    if (!found || !(found->upper - found->lower <= (tight ? kTightDeltaWidth : kQuickWidth) * found->upper))
      return std::nullopt;
    return found;
  };
  const auto remove = solve(Direction::kRemove);
  if (!remove) return std::nullopt;
  const auto add = solve(Direction::kAdd);
  if (!add) return std::nullopt;
  return larger_of<DeltaBound>(*remove, *add);
}

std::optional<DeltaBound> ContourAccountant::delta_of(const Phases& phases, Epsilon epsilon, Effort effort,
                                                      bool grouped) const {
  if (beyond_both(phases)) return std::nullopt;
  if (beyond_resolution(phases) && !has_closed_form(phases)) return renyi().delta(epsilon);
  const bool tight = effort != Effort::kQuick && !grouped;
  const auto solve = [&](Direction direction) -> std::optional<Result> {
    if (has_closed_form(phases)) {
      const Bracket found = single_phase_delta(direction, phases.front(), epsilon.value());
      return Result{found.lower, (found.lower + found.upper) / 2, found.upper, "closed form of one release"};
    }
    if (direction == Direction::kAdd && epsilon.value() >= largest_loss_of_adding(phases))
      return Result{0, 0, 0, "beyond the largest loss"};
    const auto line = has_table(phases) ? std::nullopt
                                        : line_delta({direction, phases}, epsilon.value(),
                                                     tight ? kTightBudget : kQuickBudget, tight);
    if (for_line_alone(phases)) return line;
    if (line && line->upper - line->lower <= (tight ? kTightDeltaWidth : kQuickWidth) * line->upper) return line;
    return inside_both(line,
                       grid_delta(direction, phases, epsilon.value(), tight ? GridSize::kLarge : GridSize::kSmall));
  };
  const auto remove = solve(Direction::kRemove);
  const auto add = solve(Direction::kAdd);
  if ((!remove || !add) && for_line_alone(phases)) return std::nullopt;
  if (!remove || !add) return renyi().delta(epsilon);
  DeltaBound found = larger_of<DeltaBound>(*remove, *add);
  if (found.upper - found.lower <= kQuickWidth * found.upper) return found;
  return capped(std::move(found), renyi().delta(epsilon));
}

std::unique_ptr<Accountant> ContourAccountant::clone() const { return std::make_unique<ContourAccountant>(*this); }

}  // namespace ghostshard::accountant
