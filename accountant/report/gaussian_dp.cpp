#include "accountant/report/gaussian_dp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Phi(-x)/phi(x), x >= 0.
double mills_ratio(double x) {
  if (x < 25) return std::sqrt(std::numbers::pi / 2) * std::exp(x * x / 2) * std::erfc(x / std::numbers::sqrt2);
  const double r = 1 / (x * x);
  return (1 - r * (1 - 3 * r * (1 - 5 * r * (1 - 7 * r * (1 - 9 * r))))) / x;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

// The smallest mu whose curve passes on or above (epsilon, delta), 0 < delta < 1.
double mu_through(double epsilon, double delta) {
  double low = 0, high = 1;
  while (gdp_delta(high, epsilon) < delta) {
    low = high;
    high *= 2;
    if (high > 1e8) return kInfinity;
  }
  while (high - low > 5e-7 * high && high > 1e-9) {
    const double middle = low + (high - low) / 2;
    (gdp_delta(middle, epsilon) < delta ? low : high) = middle;
  }
  // gdp_delta is good to 1e-9 and grows at least in proportion to mu.
  return high * (1 + 1e-7);
}

}  // namespace

double gdp_delta(double mu, double epsilon) {
  const double a = epsilon / mu - mu / 2;
  const double b = epsilon / mu + mu / 2;
  // e^epsilon·phi(b) = phi(a): the difference of two close tails becomes one of two ratios, which keeps its digits.
  if (a >= 0)
    return std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi) * std::max(0.0, mills_ratio(a) - mills_ratio(b));
  return normal_cdf(-a) - std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi) * mills_ratio(b);
}

double pessimistic_gdp(std::vector<std::pair<double, double>> curve) {
  std::erase_if(curve, [](const auto& point) { return !std::isfinite(point.first); });
  if (curve.empty()) return kInfinity;
  double total_variation = 1;
  for (const auto& [epsilon, delta] : curve)
    total_variation = std::min(total_variation, std::tanh(epsilon / 2) + 2 * delta / (std::exp(epsilon) + 1));
  curve.emplace_back(0.0, total_variation);
  std::sort(curve.begin(), curve.end());
  // Of several deltas at one epsilon the first, the smallest, is the one to keep.
  curve.erase(std::unique(curve.begin(), curve.end(), [](const auto& a, const auto& b) { return a.first == b.first; }),
              curve.end());
  if (curve.back().first == 0) return 0;

  constexpr int kPieces = 16;
  double mu = 0;
  for (size_t i = 0; i + 1 < curve.size(); ++i) {
    const auto [left, high] = curve[i];
    const auto [right, low] = curve[i + 1];
    for (int piece = 0; piece < kPieces; ++piece) {
      // On this piece the run's delta is at most its bound at the left end, and mu's delta at least its value at the
      // right end.
      const double from = left + (right - left) * piece / kPieces;
      const double to = left + (right - left) * (piece + 1) / kPieces;
      const double share = std::exp(from - right) * std::expm1(left - from) / std::expm1(left - right);
      const double bound = high + (std::min(low, high) - high) * share;
      if (bound > 0) mu = std::max(mu, bound < 1 ? mu_through(to, bound) : kInfinity);
    }
  }
  return mu;
}

double membership_bound(const std::vector<std::pair<double, double>>& curve, double false_positive_rate) {
  double most = 1;
  for (const auto& [epsilon, delta] : curve) {
    most = std::min(most, std::exp(epsilon) * false_positive_rate + delta);
    most = std::min(most, 1 - std::exp(-epsilon) * (1 - false_positive_rate - delta));
  }
  return most;
}

}  // namespace ghostshard::accountant
