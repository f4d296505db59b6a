// The least value of a smooth function, by BFGS.
#pragma once

#include <functional>
#include <vector>

namespace ghostshard::dp {

// A value and its derivative by each argument.
struct Sloped {
  double value;
  std::vector<double> slopes;
};

// Arguments at which no step along a descent helps any more: a local minimum, from `start` on. At most 300 steps.
std::vector<double> by_bfgs(std::vector<double> start,
                            const std::function<Sloped(const std::vector<double>&)>& function);

}  // namespace ghostshard::dp
