// How far a grid of losses is moved down, so that nearly all merged cells lie above their places on it.
#pragma once

#include <vector>

namespace ghostshard::accountant {

// By how many steps a cell's loss exceeds its place on the grid, and what moving the cell down by a step costs.
struct Misplaced {
  double excess, weight;
};

// The cheapest way down among 0.5^(k/2) steps, k from first to last. A cell that then still lies below its place falls
// a whole step.
double cheapest_power_of_half(int first, int last, const std::vector<Misplaced>& cells);

}  // namespace ghostshard::accountant
