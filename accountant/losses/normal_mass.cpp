#include "accountant/losses/normal_mass.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kFarthest = 39;    // deviations, beyond which
constexpr double kBeyond = 1e-320;  // is more than there is

}  // namespace

// A narrow interval: Gauss-Legendre with four nodes. Its own error, at most
// 1.5e-7·(h·(|z| + 6))^8 of the density for half a width h, is below the rounding for h·(|z| + 6) <= 0.4; the density
// errs by its exponent. Wider intervals are cut.
Mass normal_mass(double a, double b) {
  if (!(a <= kFarthest && b >= -kFarthest)) return {0, kBeyond};
  if (a < -kFarthest || b > kFarthest) {
    const Mass inside = normal_mass(std::max(a, -kFarthest), std::min(b, kFarthest));
    return {inside.value, inside.error + 2 * kBeyond};
  }
  const double h = (b - a) / 2;
  const double z = (a + b) / 2;
  const double largest = std::max(std::abs(a), std::abs(b));
  if (h * (largest + 6) > 0.4) {
    const Mass low = normal_mass(a, z);
    const Mass high = normal_mass(z, b);
    return {low.value + high.value, low.error + high.error};
  }
  constexpr double kNodes[] = {0.8611363115940526, 0.3399810435848563};
  constexpr double kWeights[] = {0.3478548451374538, 0.6521451548625461};
  constexpr double kDensity = 0.3989422804014327;
  double sum = 0;
  for (int i = 0; i < 2; ++i)
    for (const double side : {-1.0, 1.0}) {
      const double x = z + side * kNodes[i] * h;
      sum += kWeights[i] * std::exp(-0.5 * x * x);
    }
  const double value = sum * h * kDensity;
  return {value, value * kRounding * (32 + 4 * largest * largest) + 1e-310};
}

}  // namespace ghostshard::accountant
