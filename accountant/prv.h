#pragma once

#include "accountant/accountant.h"

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

}  // namespace ghostshard::accountant
