#include "accountant/engines/prv.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "accountant/engines/rdp.h"
#include "accountant/gaussian/event_table.h"
#include "accountant/gaussian/few_losses.h"
#include "accountant/gaussian/releases.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/losses/event_pair.h"

namespace ghostshard::accountant {
namespace {

constexpr size_t kMostPhases = 24;  // distinct sampled releases: each is transformed by itself
constexpr size_t kTogether = 8;     // of more than these
constexpr double kNarrow = 2e-5;    // a bracket that need not be narrower
constexpr double kCoarse = 0.01;    // relative; if rounding may hide delta, closed forms are better

// Gaussians of which none is sampled are one Gaussian (releases.h): nothing to discretise.
bool unsampled(const std::vector<ComposedRelease>& phases) {
  return phases.size() == 1 && phases.front().release.q == 1 && !has_table(phases);
}

// What is known of zCDP and of tuning are upper ends.
bool only_from_above(const std::vector<Charge>& charges) {
  return std::any_of(charges.begin(), charges.end(),
                     [](const Charge& charge) { return is_bounded_by_moments(charge.event); });
}

DirectionBound closed_form(const Bracket& found) {
  return {found.lower, found.lower + (found.upper - found.lower) / 2, found.upper, "closed form of one Gaussian"};
}

}  // namespace

std::optional<DirectionBound> adding_beside(const DirectionBound& remove, const GridRequest& request,
                                            const GridSolver& add) {
  const double enough = std::max(remove.upper, remove.lower + kNarrow);
  GridRequest half = request;
  half.upper_only = true;
  std::optional<DirectionBound> found;
  for (const GridSize size : {GridSize::kSmall, request.size}) {
    half.size = size;
    found = add(half);
    if (found && found->upper <= enough) {
      found->estimate = -1;
      return found;
    }
    if (size == request.size) break;
  }
  return request.upper_only ? found : add(request);
}

void PrvAccountant::admit(const Event& event) {
  if (has_loss_table(event, adjacency()))
    (void)event_table(event, adjacency(), name());
  else
    (void)sampled_gaussian(event, adjacency(), name());
}

EpsilonBound PrvAccountant::bound_epsilon(Delta delta, Effort effort) const {
  const ReleaseBracket releases = composed_releases(charges(), adjacency(), name(), kMostPhases, kTogether);
  EpsilonBound found = epsilon_of(releases.less_private, delta, effort);
  if (only_from_above(charges())) found.lower = 0;
  if (releases.exact()) return found;
  return with_lower_of(std::move(found), std::optional(epsilon_of(releases.more_private, delta, effort)));
}

EpsilonBound PrvAccountant::epsilon_of(const std::vector<ComposedRelease>& phases, Delta delta, Effort effort) const {
  const EpsilonBound otherwise = rdp_of(charges(), adjacency()).epsilon(delta);
  const GridRequest request{.size = effort == Effort::kQuick ? GridSize::kSmall : GridSize::kLarge,
                            .upper_only = effort == Effort::kUpper};
  if (beyond_resolution(phases)) return otherwise;
  if (unsampled(phases)) {  // both directions are the same
    const Bracket found = single_release_epsilon(Direction::kRemove, phases.front().release, delta);
    if (!(found.upper < otherwise.upper)) return otherwise;  // a delta of which a double has no digits
    return larger_of<EpsilonBound>(closed_form(found), closed_form(found));
  }
  auto remove = grid_epsilon(Direction::kRemove, phases, delta, request);
  if (remove && !has_table(phases) && remove->upper - remove->lower > kCoarse * remove->upper)
    remove = inside_both(remove, few_losses_bound(phases, delta));
  if (!remove) return otherwise;
  // If adding certainly lies within the bracket of removing, this bracket is one of the larger of both.
  std::optional<DirectionBound> add(DirectionBound{0, -1, 0, ""});
  if (!adding_is_no_worse(phases, remove->upper, std::log(delta.value())))
    add = adding_beside(*remove, request,
                        [&](const GridRequest& asked) { return grid_epsilon(Direction::kAdd, phases, delta, asked); });
  if (!add) return otherwise;
  EpsilonBound bound = larger_of<EpsilonBound>(*remove, *add);
  return bound.upper <= otherwise.upper ? bound : otherwise;
}

DeltaBound PrvAccountant::bound_delta(Epsilon epsilon, Effort effort) const {
  const ReleaseBracket releases = composed_releases(charges(), adjacency(), name(), kMostPhases, kTogether);
  DeltaBound found = delta_of(releases.less_private, epsilon, effort);
  if (only_from_above(charges())) found.lower = 0;
  if (releases.exact()) return found;
  return with_lower_of(std::move(found), std::optional(delta_of(releases.more_private, epsilon, effort)));
}

DeltaBound PrvAccountant::delta_of(const std::vector<ComposedRelease>& phases, Epsilon epsilon, Effort effort) const {
  const DeltaBound otherwise = rdp_of(charges(), adjacency()).delta(epsilon);
  const GridSize size = effort == Effort::kQuick ? GridSize::kSmall : GridSize::kLarge;
  if (beyond_resolution(phases)) return otherwise;
  if (unsampled(phases)) {
    const Bracket found = single_release_delta(Direction::kRemove, phases.front().release, epsilon.value());
    return larger_of<DeltaBound>(closed_form(found), closed_form(found));
  }
  const auto remove = grid_delta(Direction::kRemove, phases, epsilon.value(), size);
  const bool add_is_zero = epsilon.value() >= largest_loss_of_adding(phases);
  const auto add = add_is_zero ? std::optional(DirectionBound{0, 0, 0, ""})
                               : grid_delta(Direction::kAdd, phases, epsilon.value(), size);
  if (!remove || !add) return otherwise;
  DeltaBound bound = larger_of<DeltaBound>(*remove, *add);
  return bound.upper <= otherwise.upper ? bound : otherwise;
}

std::unique_ptr<Accountant> PrvAccountant::clone() const { return std::make_unique<PrvAccountant>(*this); }

}  // namespace ghostshard::accountant
