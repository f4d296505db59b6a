// How far a grid of losses is moved down, so that nearly all merged cells lie above their places on it.
#pragma once

#include <vector>

namespace ghostshard::accountant {

// The cheapest way down among 0.5^(k/2) steps, k from first to last. A cell that then still lies below its place falls
// a whole step.
class CheapestWayDown {
 public:
  CheapestWayDown(int first, int last);
  // excess: of a cell's loss over its place on the grid, in steps. weight: what moving the cell down by a step costs.
  void add(double excess, double weight);
  double power_of_half() const;

 private:
  int first_, last_;
  double all_ = 0, weights_ = 0;
  std::vector<double> falls_;  // from this power of half on
};

}  // namespace ghostshard::accountant
