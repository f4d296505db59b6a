// The accountant by privacy loss distributions on a grid (grid.h): what Opacus' PRV accountant and Google's PLD
// accountant compute, with the errors they leave out counted in. `upper` is what they report.
//
// Gaussians of which none is sampled have the closed form of one. Elsewhere brackets are some 1e-6 to 1e-4 wide, wider
// for millions of steps with large epsilons: the contour accountant is tighter and faster. This one exists to check it
// by other means, and for the few runs that it cannot integrate. kQuick, and where no finite bound is found: the Rényi
// bound.
#pragma once

#include <functional>
#include <optional>

#include "accountant/accountant.h"
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
};

// What adding a unit bounds beside what removing one does, for larger_of. Its upper end alone is half the work, and on
// a small grid milliseconds: enough where it adds little or nothing to the bracket. `add`: grid_epsilon in that
// direction.
using GridSolver = std::function<std::optional<DirectionBound>(const GridRequest&)>;
std::optional<DirectionBound> adding_beside(const DirectionBound& remove, const GridRequest& request,
                                            const GridSolver& add);

}  // namespace ghostshard::accountant
