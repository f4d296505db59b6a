#pragma once

#include "accountant/accountant.h"
#include "accountant/rdp.h"

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
  RdpAccountant renyi() const;  // what stands in where the line would take too long
};

}  // namespace ghostshard::accountant
