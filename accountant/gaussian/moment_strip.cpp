#include "accountant/gaussian/moment_strip.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ghostshard::accountant {

double largest_lift(double q, double c) { return -c * std::log1p(-q); }
Range outcomes_that_count(Direction direction, double q, double sigma, double c) {
  if (direction == Direction::kRemove) return {-kTail * sigma, 1 + c + kTail * sigma};
  const double left = std::min(c + kTail * sigma, std::sqrt(kTail * kTail + 2 * largest_lift(q, c)) * sigma);
  return {-left, 1 + kTail * sigma};
}

double mesh_step(Direction direction, double sigma, double c, double shift, double half_width, double precision) {
  const double reach = shift + half_width;
  double exponent = precision + reach * reach / (2 * sigma * sigma);
  if (direction == Direction::kAdd) exponent -= c * std::log(std::cos(reach / (2 * sigma * sigma)));
  return 2 * std::numbers::pi * half_width / exponent;
}

double exact_step(double h) {
  int exponent = 0;
  const double digits = std::frexp(h, &exponent);
  return std::ldexp(std::floor(std::ldexp(digits, 24)), exponent - 24);
}

double best_strip(Direction direction, double sigma, double c, bool shifted, double precision) {
  const double widest = (shifted ? 0.5 : 1.0) * std::numbers::pi * sigma * sigma * 0.98;
  const double cap = shifted ? std::min(widest, 1.5 * sigma) : std::min(widest, 10 * sigma);
  double best = cap;
  double best_step = 0;
  for (double d = cap; d > cap / 64; d *= 0.85) {
    const double h = mesh_step(direction, sigma, c, shifted ? d : 0, d, precision);
    if (h > best_step) {
      best_step = h;
      best = d;
    }
  }
  return best;
}

}  // namespace ghostshard::accountant
