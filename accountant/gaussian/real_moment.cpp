// M(c) and its derivatives on the real axis (composed_release.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "accountant/gaussian/composed_release.h"
#include "accountant/gaussian/moment_strip.h"

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

constexpr double kNothing = 150;  // e^-this of anything is below M - 1, however small the rate
constexpr double kSmall = 0.5;    // from here on e^y - 1 - y loses no digits by being taken so
// e^y - 1 - y for smaller ones, without a division: those of all terms up to 0.5^15/15! are in the numbers.
double e2_small(double y) {
  static constexpr auto kInverseFactorials = [] {  // 1/2!, 1/3!, …
    std::array<double, 14> found{};
    double inverse = 0.5;
    for (size_t k = 0; k < found.size(); ++k) {
      found[k] = inverse;
      inverse /= static_cast<double>(k + 3);
    }
    return found;
  }();
  double sum = 0;
  for (size_t k = kInverseFactorials.size(); k-- > 0;) sum = sum * y + kInverseFactorials[k];
  return y * y * sum;
}

// Outcomes on the mesh of one release, with the values that do not depend on c. The logarithm, which costs the most, is
// taken once for the hundred or so c that are tried for a saddle point and a line.
struct Outcome {
  double log_weight, weight, l;
  double weighted_d;  // weight·(l - (w - 1)), which may be a double even if w - 1 is not
};
struct Mesh {
  Direction direction;
  SampledGaussian release;
  double most_c;  // it is fine enough up to here
  double low, h;
  std::vector<Outcome> outcomes;
};

// Removing: one mesh serves every c, and grows to the right. Adding: one for all c up to a power of this.
constexpr double kServes = 4;
constexpr size_t kMostKept = 12;          // meshes, of several phases in both directions
constexpr size_t kMostOutcomes = 50'000;  // of one that is kept

double most_served(Direction direction, double c) {
  if (direction == Direction::kRemove) return std::numeric_limits<double>::infinity();
  const double power = std::pow(kServes, std::ceil(std::log(c) / std::log(kServes)));
  return power < c ? power * kServes : power;
}

Mesh mesh_for(Direction direction, SampledGaussian release, double most_c) {
  const double c = direction == Direction::kRemove ? 1 : most_c;
  const double d = best_strip(direction, release.sigma, c, false, kPrecision);
  return {direction,
          release,
          most_c,
          outcomes_that_count(direction, release.q, release.sigma, c).low,
          mesh_step(direction, release.sigma, c, 0, d, kPrecision),
          {}};
}

void grow(Mesh& mesh, size_t size) {
  const auto [q, sigma] = mesh.release;
  const double log_h = std::log(mesh.h / (sigma * kSqrtTwoPi));
  mesh.outcomes.reserve(size);
  while (mesh.outcomes.size() < size) {
    const double x = mesh.low + mesh.h * static_cast<double>(mesh.outcomes.size());
    const double z = x / sigma;
    const Loss loss = real_loss(q, (2 * x - 1) / (2 * sigma * sigma));
    const double log_weight = log_h - z * z / 2;
    const double weight = std::exp(log_weight);
    const bool far = loss.l > kHeavy;  // w itself may be too large for a double, and the weight too small
    mesh.outcomes.push_back({log_weight, weight, loss.l,
                             far ? weight * loss.l - (std::exp(log_weight + loss.l) - weight) : weight * loss.d});
  }
}

// The last ones used come first. The mesh of a c depends on c alone, and not on earlier calls.
Mesh& mesh_of(std::vector<Mesh>& kept, Direction direction, SampledGaussian release, double c) {
  const double most_c = most_served(direction, c);
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const Mesh& mesh) {
    return mesh.direction == direction && mesh.release.q == release.q && mesh.release.sigma == release.sigma &&
           mesh.most_c == most_c;
  });
  if (found != kept.end()) {
    std::rotate(kept.begin(), found, found + 1);
    return kept.front();
  }
  if (kept.size() == kMostKept) kept.pop_back();
  kept.insert(kept.begin(), mesh_for(direction, release, most_c));
  return kept.front();
}

// By M - 1, if M is not large.
RealMoment as_excess(std::span<const Outcome> outcomes, double p, double sign) {
  double m = 0;
  double m1 = 0;
  double m2 = 0;
  double sum_d = 0;
  for (const auto& [log_weight, weight, l, weighted_d] : outcomes) {
    const double y = p * l;
    sum_d += weighted_d;
    if (std::abs(y) < kSmall) {
      const double e2 = e2_small(y);
      m += weight * e2;
      m1 += weight * (y + e2) * l;
      m2 += weight * (1 + y + e2) * l * l;
    } else if (y > kHeavy) {  // the power may be too large for a double, and the weight too small
      if (log_weight + y < -kNothing) continue;
      const double term = std::exp(log_weight + y);
      m += term - weight * (1 + y);
      m1 += (term - weight) * l;
      m2 += term * l * l;
    } else if (log_weight > -kNothing) {
      const double growth = std::expm1(y);
      m += weight * (growth - y);
      m1 += weight * growth * l;
      m2 += weight * (1 + growth) * l * l;
    }
  }
  m += p * sum_d;
  const double mean = sign * (m1 + sum_d) / (1 + m);
  return {std::log1p(m), mean, m2 / (1 + m) - mean * mean};
}

// By M·e^-top, top the logarithm of the largest term.
RealMoment relative_to(double top, std::span<const Outcome> outcomes, double p, double sign) {
  double m = 0;
  double m1 = 0;
  double m2 = 0;
  for (const Outcome& outcome : outcomes) {
    const double exponent = outcome.log_weight + p * outcome.l - top;
    if (exponent < -kNegligible) continue;
    const double term = std::exp(exponent);
    m += term;
    m1 += term * outcome.l;
  }
  const double mean = m1 / m;
  for (const Outcome& outcome : outcomes) {
    const double exponent = outcome.log_weight + p * outcome.l - top;
    if (exponent < -kNegligible) continue;
    m2 += std::exp(exponent) * (outcome.l - mean) * (outcome.l - mean);
  }
  return {top + std::log(m), sign * mean, m2 / m};
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
  thread_local std::vector<Mesh> kept;
  Mesh& mesh = mesh_of(kept, direction, release, c);
  const auto [low, high] = outcomes_that_count(direction, q, sigma, c);
  const auto first = static_cast<size_t>(std::max(0.0, std::floor((low - mesh.low) / mesh.h)));
  const auto end = static_cast<size_t>((high - mesh.low) / mesh.h) + 2;
  if (mesh.outcomes.size() < end) grow(mesh, end);
  const std::span<const Outcome> outcomes(mesh.outcomes.data() + first, end - first);

  double top = -std::numeric_limits<double>::infinity();
  for (const Outcome& outcome : outcomes) top = std::max(top, outcome.log_weight + p * outcome.l);
  const double sign = remove ? 1 : -1;  // d p/d z
  const RealMoment found = top < 3 ? as_excess(outcomes, p, sign) : relative_to(top, outcomes, p, sign);
  if (mesh.outcomes.size() > kMostOutcomes) kept.erase(kept.begin());
  return found;
}

}  // namespace ghostshard::accountant
