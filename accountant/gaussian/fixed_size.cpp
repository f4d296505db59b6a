#include "accountant/gaussian/fixed_size.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kLargestOrder = 4096;  // beyond it the unsampled Gaussian's bound is used

double at_whole_order(double gamma, double sigma, int64_t alpha) {
  if (alpha <= 1) return 0;
  const double log_gamma = std::log(gamma);
  const auto gaussian = [&](double j) { return j * 2 / (sigma * sigma); };  // eps(j)
  const double order = static_cast<double>(alpha);
  const double pairs = std::log(order * (order - 1) / 2) + 2 * log_gamma;
  // min{4(e^e - 1), 2 e^e}: the second from e = log 2 on.
  const double e2 = gaussian(2);
  double log_sum = pairs + (e2 < std::log(2.0) ? std::log(4 * std::expm1(e2)) : std::log(2.0) + e2);
  double log_choose = std::log(order * (order - 1) / 2);
  double largest = std::abs(log_sum);
  for (int64_t j = 3; j <= alpha; ++j) {
    const double jd = static_cast<double>(j);
    log_choose += std::log((order - jd + 1) / jd);
    const double term = std::log(2.0) + jd * log_gamma + log_choose + (jd - 1) * gaussian(jd);
    largest = std::max(largest, std::abs(term) + jd * std::abs(log_gamma));
    const double top = std::max(log_sum, term);
    log_sum = top + std::log1p(std::exp(std::min(log_sum, term) - top));
  }
  const double value = log_sum > 40 ? log_sum + std::exp(-log_sum) : std::log1p(std::exp(log_sum));
  // Each of the logarithms carries a few roundings of its size, once per term of the sum.
  const double relative = std::numeric_limits<double>::epsilon() * order * (8 + largest);
  return log_sum > 40 ? value + relative : value * (1 + relative);
}

}  // namespace

double fixed_size_log_moment(const FixedSizeGaussianEvent& event, double c) {
  const double sigma = event.sigma.value();
  const double unsampled = c * (1 + c) * 2 / (sigma * sigma) * (1 + 1e-15);
  const double floor_order = std::floor(1 + c);
  if (event.batch == event.units || !(floor_order < kLargestOrder)) return unsampled;
  const double gamma = static_cast<double>(event.batch) / static_cast<double>(event.units);
  const auto alpha = static_cast<int64_t>(floor_order);
  const double left = at_whole_order(gamma, sigma, alpha);
  const double right = at_whole_order(gamma, sigma, alpha + 1);
  const double share = std::clamp((1 + c) - floor_order + 1e-15 * (1 + c), 0.0, 1.0);
  const double chord = left + share * (right - left) * (1 + 1e-15);
  return chord >= 0 && chord < kInfinity ? std::min(chord, unsampled) : unsampled;
}

}  // namespace ghostshard::accountant
