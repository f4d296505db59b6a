#include "accountant/grid/misplaced.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace ghostshard::accountant {

CheapestWayDown::CheapestWayDown(int first, int last)
    : first_(first), last_(last), falls_(static_cast<size_t>(last - first) + 2, 0.0) {}

// Moved down by b, a cell costs its weight times (excess + b), and one step more if that is negative.
void CheapestWayDown::add(double excess, double weight) {
  if (!(weight > 0 && std::isfinite(weight) && std::isfinite(excess))) return;
  all_ += weight * excess;
  weights_ += weight;
  if (excess >= 0) return;
  int exponent = 0;
  const double fraction = std::frexp(-excess, &exponent);  // of [1/2, 1)
  // floor(-2·log2(-excess)) + 1
  const double power = 1.0 - 2 * exponent + (fraction > 0.70710678118654752 ? 0 : fraction > 0.5 ? 1 : 2);
  falls_[static_cast<size_t>(std::clamp(power - first_, 0.0, static_cast<double>(last_ - first_ + 1)))] += weight;
}

double CheapestWayDown::power_of_half() const {
  double cheapest = 0;
  double least = std::numeric_limits<double>::infinity();
  double fallen = 0;
  for (int k = first_; k <= last_; ++k) {
    fallen += falls_[static_cast<size_t>(k - first_)];
    const double candidate = std::pow(0.5, 0.5 * k);
    const double found = all_ + weights_ * candidate + fallen;
    if (found < least) {
      least = found;
      cheapest = candidate;
    }
  }
  return cheapest;
}

}  // namespace ghostshard::accountant
