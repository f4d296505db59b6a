// The default accountant: exact to rounding, and certified.
//
// delta(epsilon) is an integral along a vertical line (contour_line.h, arXiv:2208.09595), computed by the trapezoid
// rule. Each of its errors is bounded by proof: the alias (Poisson summation and Chernoff), the quadrature of each
// moment (a strip of analyticity), the nodes beyond the last (a bound that falls along the whole line), and rounding.
// Newton's method finds epsilon on nodes that do not depend on it; its bracket comes from the proven bounds of delta on
// both sides.
//   kTight repeats the integral on a second line with another mesh, and refuses both if their brackets do not meet.
//   Where few large losses decide and lines are long, one is that of large losses alone (large_losses.h), or has a
//   short period, whose alias is known (contour_line.h).
//   One release, and unsampled Gaussians alone, have closed forms (single_release.h), and so have releases of so little
//   noise that their outcomes tell whether the unit was drawn (separated_outcomes.h).
//   If the line would need too many nodes (few steps, tiny rates) or its bracket is wide, the grid is asked (grid.h;
//   with kQuick a small one), and both brackets hold. If neither answers, the Rényi bound does.
// Schedules have a sigma, or a rate too, of their own in every step: a few releases stand for all (sigma_rule.h). Where
// no few do, similar ones are put together twice beyond some hundred: for the upper end and for the lower (releases.h).
// The larger of both directions is returned. Adding is not integrated if Chernoff's bound already lies below.
#pragma once

#include <optional>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/engines/rdp.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {

class ContourAccountant final : public Accountant {
 public:
  explicit ContourAccountant(Adjacency adjacency) : Accountant(adjacency) {}
  std::unique_ptr<Accountant> clone() const override;
  std::string name() const override { return "contour"; }
  bool bounds_truncation() const override { return true; }

 private:
  void admit(const Event& event) override;
  EpsilonBound bound_epsilon(Delta delta, Effort effort) const override;
  DeltaBound bound_delta(Epsilon epsilon, Effort effort) const override;
  // Of these releases. What Rényi's bound adds is of the charges themselves.
  // Nothing if only a line could bound them and none does. grouped: similar releases were put together.
  // like: where removing may have its epsilon.
  std::optional<EpsilonBound> epsilon_of(const std::vector<ComposedRelease>& phases, Delta delta, Effort effort,
                                         bool grouped, const std::optional<Saddle>& like) const;
  std::optional<DeltaBound> delta_of(const std::vector<ComposedRelease>& phases, Epsilon epsilon, Effort effort,
                                     bool grouped) const;
  // Nothing if no line answers for a few of them (schedule.h).
  // for_grid: becomes true if no line of any of their groups will answer either. like: becomes what epsilon_of takes.
  std::optional<EpsilonBound> epsilon_of_schedule(const std::vector<ComposedRelease>& phases, Delta delta,
                                                  Effort effort, bool& for_grid, std::optional<Saddle>& like) const;
  std::optional<DeltaBound> delta_of_schedule(const std::vector<ComposedRelease>& phases, Epsilon epsilon,
                                              Effort effort) const;
  template <class Bound, class OfSchedule, class Of, class OfRenyi>
  Bound over_neighbours(Effort effort, const OfSchedule& of_schedule, const Of& of, const OfRenyi& of_renyi) const;
  RdpAccountant renyi() const;  // answers if neither line nor grid does
};

}  // namespace ghostshard::accountant
