#include "accountant/grid/misplaced.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace ghostshard::accountant {

double cheapest_power_of_half(int first, int last, const std::vector<Misplaced>& cells) {
  // Moved down by b, a cell costs its weight times (excess + b), and one step more if that is negative.
  double all = 0;
  double weights = 0;
  std::vector<double> falls(static_cast<size_t>(last - first) + 2, 0.0);  // from this power of half on
  for (const auto& [excess, weight] : cells) {
    if (!(weight > 0 && std::isfinite(weight) && std::isfinite(excess))) continue;
    all += weight * excess;
    weights += weight;
    if (excess >= 0) continue;
    int exponent = 0;
    const double fraction = std::frexp(-excess, &exponent);  // of [1/2, 1)
    // floor(-2·log2(-excess)) + 1
    const double power = 1.0 - 2 * exponent + (fraction > 0.70710678118654752 ? 0 : fraction > 0.5 ? 1 : 2);
    falls[static_cast<size_t>(std::clamp(power - first, 0.0, static_cast<double>(last - first + 1)))] += weight;
  }
  double cheapest = 0;
  double least = std::numeric_limits<double>::infinity();
  double fallen = 0;
  for (int k = first; k <= last; ++k) {
    fallen += falls[static_cast<size_t>(k - first)];
    const double candidate = std::pow(0.5, 0.5 * k);
    const double found = all + weights * candidate + fallen;
    if (found < least) {
      least = found;
      cheapest = candidate;
    }
  }
  return cheapest;
}

}  // namespace ghostshard::accountant
