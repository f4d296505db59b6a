// The default accountant: exact to rounding, and certified.
//
// delta(epsilon) as an integral along a vertical line (contour_line.h, arXiv:2208.09595), by the trapezoid rule, whose
// every error is bounded by proof: the alias (Poisson summation and Chernoff), the quadrature of each moment (a strip
// of analyticity), what lies beyond the last node (a bound that falls along the whole line), and rounding. epsilon by
// Newton's method on nodes that do not depend on it; its bracket by evaluating the proven bounds of delta on both
// sides.
//   kTight  repeats the integral on a second line with another mesh and refuses both where their brackets do not meet.
//   One release, and unsampled Gaussians alone: closed forms (single_release.h).
//   Where the line would need too many nodes (few steps, tiny rates) or its bracket is wide: the grid (grid.h), kQuick
//   a small one; what both say holds. The Rényi bound is left for where neither answers.
// The larger of both directions is returned; adding is not integrated where Chernoff's bound already lies below.
#pragma once

#include "accountant/accountant.h"
#include "accountant/engines/rdp.h"

namespace ghostshard::accountant {

class ContourAccountant final : public Accountant {
 public:
  explicit ContourAccountant(Adjacency adjacency) : Accountant(adjacency) {}
  std::unique_ptr<Accountant> clone() const override;
  std::string name() const override { return "contour"; }

 private:
  void admit(const Event& event) override;
  EpsilonBound bound_epsilon(Delta delta, Effort effort) const override;
  DeltaBound bound_delta(Epsilon epsilon, Effort effort) const override;
  RdpAccountant renyi() const;  // what stands in where neither line nor grid answers
};

}  // namespace ghostshard::accountant
