#include "accountant/prv.h"

#include <cmath>
#include <optional>

#include "accountant/direction_bound.h"
#include "accountant/grid.h"
#include "accountant/rdp.h"
#include "accountant/releases.h"
#include "accountant/single_release.h"

namespace ghostshard::accountant {

void PrvAccountant::admit(const Event& event) { (void)sampled_gaussian(event, adjacency(), name()); }

EpsilonBound PrvAccountant::bound_epsilon(Delta delta, Effort effort) const {
  const EpsilonBound otherwise = rdp_of(charges(), adjacency()).epsilon(delta);
  const GridSize size = effort == Effort::kTight ? GridSize::kLarge : GridSize::kSmall;
  const auto phases = composed_releases(charges(), adjacency(), name());
  if (beyond_resolution(phases)) return otherwise;
  const auto remove = grid_epsilon(Direction::kRemove, phases, delta, size);
  if (!remove) return otherwise;
  const bool add_is_zero = adding_is_no_worse(phases, remove->lower, std::log(delta.value()));
  const auto add =
      add_is_zero ? std::optional(DirectionBound{0, -1, 0, ""}) : grid_epsilon(Direction::kAdd, phases, delta, size);
  if (!add) return otherwise;
  EpsilonBound bound = larger_of<EpsilonBound>(*remove, *add);
  return bound.upper <= otherwise.upper ? bound : otherwise;
}

DeltaBound PrvAccountant::bound_delta(Epsilon epsilon, Effort effort) const {
  const DeltaBound otherwise = rdp_of(charges(), adjacency()).delta(epsilon);
  const GridSize size = effort == Effort::kTight ? GridSize::kLarge : GridSize::kSmall;
  const auto phases = composed_releases(charges(), adjacency(), name());
  if (beyond_resolution(phases)) return otherwise;
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
