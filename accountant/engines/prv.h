// The accountant by privacy loss distributions on a grid (grid.h). It computes the same as Opacus' PRV accountant and
// Google's PLD accountant, and counts the errors that they leave out. Compare `upper` with their numbers.
//
// If no Gaussian is sampled, all together have the closed form of one. Otherwise brackets are some 1e-6 to 1e-4 wide,
// and wider for millions of steps with large epsilons. The contour accountant is tighter and faster; this one checks it
// by other means, and answers for the few runs that it cannot integrate. kQuick takes a small grid. If no finite bound
// is found, the Rényi bound answers.
#pragma once

#include <functional>
#include <optional>

#include "accountant/accountant.h"
#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/direction_bound.h"
#include "accountant/grid/grid.h"

namespace ghostshard::accountant {

class PrvAccountant final : public Accountant {
 public:
  explicit PrvAccountant(Adjacency adjacency) : Accountant(adjacency) {}
  std::unique_ptr<Accountant> clone() const override;
  std::string name() const override { return "prv"; }

 private:
  void admit(const Event& event) override;
  EpsilonBound bound_epsilon(Delta delta, Effort effort) const override;
  DeltaBound bound_delta(Epsilon epsilon, Effort effort) const override;
  EpsilonBound epsilon_of(const std::vector<ComposedRelease>& phases, Delta delta, Effort effort) const;
  DeltaBound delta_of(const std::vector<ComposedRelease>& phases, Epsilon epsilon, Effort effort) const;
};

// The bound of adding a unit, beside that of removing one, for larger_of. Its upper end alone is half the work, and
// takes milliseconds on a small grid; it is enough if it adds little or nothing to the bracket. `add`: grid_epsilon in
// that direction.
using GridSolver = std::function<std::optional<DirectionBound>(const GridRequest&)>;
std::optional<DirectionBound> adding_beside(const DirectionBound& remove, const GridRequest& request,
                                            const GridSolver& add);

}  // namespace ghostshard::accountant
