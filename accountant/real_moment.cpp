// M(c) and its derivatives on the real axis (contour_moments.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "accountant/contour_moments.h"
#include "accountant/moment_strip.h"

namespace ghostshard::accountant {
namespace {

struct Loss {
  double l;  // log w
  double d;  // log w - (w - 1)
};

double log1p_minus(double v) {  // log(1+v) - v
  if (std::abs(v) > 0.1) return std::log1p(v) - v;
  double sum = 0;
  for (int k = 18; k >= 2; --k) sum = v * (((k % 2) != 0 ? 1.0 : -1.0) / k + sum);
  return v * sum;
}

Loss real_loss(double q, double u) {
  if (u > 300) {
    const double l = std::log(q) + u;
    return {l, l - q * std::exp(std::min(u, 700.0))};
  }
  const double v = q * std::expm1(u);
  if (v < -0.5) return {std::log((1 - q) + q * std::exp(u)), std::log((1 - q) + q * std::exp(u)) - v};
  return {std::log1p(v), log1p_minus(v)};
}

double e2(double y) {
  if (std::abs(y) > 0.5) return std::expm1(y) - y;
  double sum = 1;
  for (int k = 15; k >= 3; --k) sum = 1 + sum * y / k;
  return y * y / 2 * sum;
}

}  // namespace

RealMoment real_moment(Direction direction, SampledGaussian release, double c) {
  const auto [q, sigma] = release;
  if (q == 1) {
    const double precision = 1 / (sigma * sigma);
    return {c * (1 + c) / 2 * precision, (1 + 2 * c) / 2 * precision, precision};
  }
  const bool remove = direction == Direction::kRemove;
  const double p = remove ? 1 + c : -c;
  const double d = best_strip(direction, sigma, c, false, kPrecision);
  const double h = mesh_step(direction, sigma, c, 0, d, kPrecision);
  const auto [low, high] = outcomes_that_count(direction, q, sigma, c);
  const auto nodes = static_cast<int64_t>((high - low) / h) + 2;

  // Relative to e^scale; where M is near 1, as M - 1.
  struct Node {
    double log_weight, l, d;
  };
  thread_local std::vector<Node> kept;
  kept.clear();
  double top = -std::numeric_limits<double>::infinity();
  const double log_h = std::log(h / (sigma * kSqrtTwoPi));
  for (int64_t i = 0; i < nodes; ++i) {
    const double x = low + h * static_cast<double>(i);
    const double z = x / sigma;
    const double log_weight = log_h - z * z / 2;
    if (log_weight < -300) {  // far out: only where the power lifts it
      const double u = (2 * x - 1) / (2 * sigma * sigma);
      const double lift = remove ? p * std::max(0.0, u) : c * std::max(0.0, std::min(-u, -std::log1p(-q)));
      if (log_weight + lift < top - kNegligible) continue;
    }
    const Loss loss = real_loss(q, (2 * x - 1) / (2 * sigma * sigma));
    kept.push_back({log_weight, loss.l, loss.d});
    top = std::max(top, log_weight + p * loss.l);
  }
  const double sign = remove ? 1 : -1;  // d p/d z
  if (top < 3) {
    double m = 0;
    double m1 = 0;
    double m2 = 0;
    for (const Node& node : kept) {
      const double y = p * node.l;
      if (y > kHeavy) {  // the power may be too large for a double where the weight is too small
        const double term = std::exp(node.log_weight + y);
        const double linear = std::exp(node.log_weight + node.l) - std::exp(node.log_weight);  // of w - 1
        m += term - p * linear - std::exp(node.log_weight);
        m1 += term * node.l - linear;
        m2 += term * node.l * node.l;
        continue;
      }
      const double weight = std::exp(node.log_weight);
      const double power = std::exp(y);
      m += weight * (e2(y) + p * node.d);
      m1 += weight * (std::abs(y) < 0.5 ? std::expm1(y) * node.l + node.d : (power - 1) * node.l + node.d);
      m2 += weight * power * node.l * node.l;
    }
    const double mean = sign * m1 / (1 + m);
    return {std::log1p(m), mean, m2 / (1 + m) - mean * mean};
  }
  double m = 0;
  double m1 = 0;
  double m2 = 0;
  for (const Node& node : kept) {
    const double term = std::exp(node.log_weight + p * node.l - top);
    m += term;
    m1 += term * node.l;
  }
  const double mean = m1 / m;
  for (const Node& node : kept) m2 += std::exp(node.log_weight + p * node.l - top) * (node.l - mean) * (node.l - mean);
  return {top + std::log(m), sign * mean, m2 / m};
}

}  // namespace ghostshard::accountant
