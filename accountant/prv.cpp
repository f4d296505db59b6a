#include "accountant/prv.h"

#include <cmath>
#include <optional>

#include "accountant/direction_bound.h"
#include "accountant/grid.h"
#include "accountant/rdp.h"
#include "accountant/releases.h"
#include "accountant/single_release.h"

namespace ghostshard::accountant {
namespace {

constexpr double kNarrow = 2e-5;  // a bracket that need not be narrower
constexpr double kCoarse = 0.01;  // relative; where rounding may hide delta, closed forms are better

// Gaussians of which none is sampled are one Gaussian (releases.h): nothing to discretise.
bool unsampled(const std::vector<ComposedRelease>& phases) {
  return phases.size() == 1 && phases.front().release.q == 1;
}

DirectionBound closed_form(const Bracket& found) {
  return {found.lower, found.lower + (found.upper - found.lower) / 2, found.upper, "closed form of one Gaussian"};
}

}  // namespace

void PrvAccountant::admit(const Event& event) { (void)sampled_gaussian(event, adjacency(), name()); }

EpsilonBound PrvAccountant::bound_epsilon(Delta delta, Effort effort) const {
  const EpsilonBound otherwise = rdp_of(charges(), adjacency()).epsilon(delta);
  const GridRequest request{.size = effort == Effort::kQuick ? GridSize::kSmall : GridSize::kLarge,
                            .upper_only = effort == Effort::kUpper};
  const auto phases = composed_releases(charges(), adjacency(), name());
  if (beyond_resolution(phases)) return otherwise;
  if (unsampled(phases)) {  // both directions are the same
    const Bracket found = single_release_epsilon(Direction::kRemove, phases.front().release, delta);
    return larger_of<EpsilonBound>(closed_form(found), closed_form(found));
  }
  auto remove = grid_epsilon(Direction::kRemove, phases, delta, request);
  if (remove && remove->upper - remove->lower > kCoarse * remove->upper)
    remove = inside_both(remove, few_losses_bound(phases, delta));
  if (!remove) return otherwise;
  // Where adding is certainly within what removing may be, the bracket of removing is one of the larger.
  const double end = remove->upper;
  std::optional<DirectionBound> add(DirectionBound{0, -1, 0, ""});
  if (!adding_is_no_worse(phases, end, std::log(delta.value()))) {
    // The upper end alone is half the work, and on a small grid milliseconds: enough where it adds little or nothing to
    // the bracket.
    GridRequest half = request;
    half.upper_only = true;
    for (const GridSize size : {GridSize::kSmall, request.size}) {
      half.size = size;
      add = grid_epsilon(Direction::kAdd, phases, delta, half);
      if (add && add->upper <= std::max(end, remove->lower + kNarrow)) break;
      if (size == request.size) {
        if (!request.upper_only) add = grid_epsilon(Direction::kAdd, phases, delta, request);
        break;
      }
    }
    if (add && add->upper <= std::max(end, remove->lower + kNarrow)) add->estimate = -1;
  }
  if (!add) return otherwise;
  EpsilonBound bound = larger_of<EpsilonBound>(*remove, *add);
  return bound.upper <= otherwise.upper ? bound : otherwise;
}

DeltaBound PrvAccountant::bound_delta(Epsilon epsilon, Effort effort) const {
  const DeltaBound otherwise = rdp_of(charges(), adjacency()).delta(epsilon);
  const GridSize size = effort == Effort::kQuick ? GridSize::kSmall : GridSize::kLarge;
  const auto phases = composed_releases(charges(), adjacency(), name());
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
