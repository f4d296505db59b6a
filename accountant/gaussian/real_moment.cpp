// M(c) and its derivatives on the real axis (composed_release.h), with a bound on every error of log M(c).
//
// M(c) - 1 = E[f], f = w^p - 1 - p(w - 1) = e2(p·l) + p·d (contour_moments.h), by the trapezoid rule of step h.
//   The rule. On the strip of half width d < pi·sigma² the mean of |f| is at most e^(d²/(2 sigma²))·(M(c)·S + 1 +
//     2q|p|), S as there. So the rule errs by twice this over e^(2 pi d/h) - 1 (Trefethen, Weideman 2014, SIAM Review
//     56(3), Thm. 5.1), and mesh_step chose h for 2.1·e^-precision·(M(c) + 1 + 2q|p|).
//   Tails. From the ends of the mesh on, 1, w and w^p times the density fall at least as fast as a Gaussian kTail
//     deviations from its centre, so that the nodes beyond hold at most sigma/(kTail·h) times the last.
//   Roundings. Nodes k·h are exact (exact_step), so every rounding is relative. With v = 2^-53 and U, L, Z the largest
//     |u|, |l| and exponent of a weight: u errs by 3v of itself, q(e^u - 1) by v(6 + 3U), l by v(12 + 5U) of itself and
//     by no more than v(12 + 5U + 2L), a weight by v(10 + 4Z), y = p·l by |p|v(13 + 5U + 3L). e2 errs by 2.2 times the
//     relative error of a small y, and for |y| >= 1/2, where e^y/e2(y) <= 11, by 11 times that of y. d is at least
//     1/42 of the terms that it is made of, so it errs by v(350 + 130U) of itself. Libm is trusted to one unit in the
//     last place (glibc's manual, "Known Maximum Errors"). Neither sum has terms of both signs, so adding N terms costs
//     N·v of it (Higham 2002, §4.2). Only the two sums cancel each other; their errors are added.
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();

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
  double precision;
  double first;  // node i is (first + i)·h
  double h;
  std::vector<Outcome> outcomes;

  double at(size_t i) const { return (first + static_cast<double>(i)) * h; }
  double exponent_at(double x) const { return (2 * x - 1) / (2 * release.sigma * release.sigma); }
};

// Removing: one mesh serves every c, and grows to the right. Adding: one for all c up to a power of this.
constexpr double kServes = 4;
constexpr size_t kMostKept = 160;         // meshes, of several phases in both directions
constexpr size_t kMostOutcomes = 50'000;  // of one that is kept
constexpr size_t kMostInAll = 600'000;    // outcomes of all that are kept

double most_served(Direction direction, double c) {
  if (direction == Direction::kRemove) return std::numeric_limits<double>::infinity();
  const double power = std::pow(kServes, std::ceil(std::log(c) / std::log(kServes)));
  return power < c ? power * kServes : power;
}

Mesh mesh_for(Direction direction, SampledGaussian release, double most_c, double precision) {
  require_noise_with_a_square(release);
  const double c = direction == Direction::kRemove ? 1 : most_c;
  const double d = best_strip(direction, release.sigma, c, false, precision);
  const double h = exact_step(mesh_step(direction, release.sigma, c, 0, d, precision));
  const double low = outcomes_that_count(direction, release.q, release.sigma, c).low;
  return {direction, release, most_c, precision, std::floor(low / h), h, {}};
}

void grow(Mesh& mesh, size_t size) {
  const auto [q, sigma] = mesh.release;
  const double log_h = std::log(mesh.h / (sigma * kSqrtTwoPi));
  mesh.outcomes.reserve(size);
  while (mesh.outcomes.size() < size) {
    const double x = mesh.at(mesh.outcomes.size());
    const double z = x / sigma;
    const Loss loss = real_loss(q, mesh.exponent_at(x));
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
  size_t outcomes = 0;
  for (const Mesh& mesh : kept) outcomes += mesh.outcomes.size();
  while (!kept.empty() && (kept.size() >= kMostKept || outcomes > kMostInAll)) {
    outcomes -= kept.back().outcomes.size();
    kept.pop_back();
  }
  kept.insert(kept.begin(), mesh_for(direction, release, most_c, kPrecision));
  return kept.front();
}

// What bounds the errors of a sum over these outcomes.
class Errors {
 public:
  Errors(const Mesh& mesh, size_t first, size_t end, double c)
      : mesh_(mesh), p_(mesh.direction == Direction::kRemove ? 1 + c : -c), c_(c), first_(first), last_(end - 1) {
    const double sigma = mesh.release.sigma;
    const double log_h = std::abs(std::log(mesh.h / (sigma * kSqrtTwoPi)));
    for (const size_t i : {first_, last_}) {
      const double x = mesh.at(i);
      largest_u_ = std::max(largest_u_, std::abs(mesh.exponent_at(x)));
      largest_l_ = std::max(largest_l_, std::abs(mesh.outcomes[i].l));
      largest_exponent_ = std::max(largest_exponent_, x / sigma * (x / sigma) / 2 + log_h);
    }
    nodes_ = static_cast<double>(end - first);
  }

  // Of M - 1 = powers + p·sum_d, both sums of terms of one sign.
  double of_excess(double powers, double sum_d, double m) const {
    const double of_weight = 10 + 4 * largest_exponent_;
    const double of_powers = of_weight + 60 + 11 * largest_u_ + 11 * of_power() + nodes_;
    const double of_d = of_weight + 350 + 130 * largest_u_ + nodes_;
    return kHalfUnit * (of_powers * powers + of_d * std::abs(p_ * sum_d)) * 1.01 + rule(1 + m) + tails(0) +
           nodes_ * kOmitted;
  }
  // Of log M, if its terms were taken relative to e^top. M >= 1.
  double of_logarithm(double top, double log_m) const {
    const double roundings = 30 + 10 * largest_exponent_ + 3 * of_power() + 4 * std::abs(top) + nodes_;
    return kHalfUnit * roundings * 1.01 + rule(1) + tails(log_m) + nodes_ * std::exp(-kNegligible);
  }

 private:
  static constexpr double kHalfUnit = 0x1p-53;
  static constexpr double kOmitted = 1e-42;  // e^(kHeavy - kNothing) of an outcome that as_excess leaves out

  // Units of rounding that p·l errs by.
  double of_power() const { return std::abs(p_) * (13 + 5 * largest_u_ + 4 * largest_l_); }
  double rule(double m) const {
    return 2.1 * std::exp(-mesh_.precision) * (m + 1 + 2 * mesh_.release.q * std::abs(p_));
  }
  // All that lies beyond both ends, divided by e^log_scale.
  double tails(double log_scale) const {
    const auto& [q, sigma] = mesh_.release;
    const bool remove = mesh_.direction == Direction::kRemove;
    const double lift = largest_lift(q, c_);
    const double share = sigma / (kTail * mesh_.h) * 1.01;
    double sum = 0;
    for (const size_t i : {first_, last_}) {
      const Outcome& outcome = mesh_.outcomes[i];
      // Far to the left w^-c is e^lift at most, if the mesh ends where this decides.
      const bool lifted = !remove && i == first_ && c_ + kTail * sigma > std::sqrt(kTail * kTail + 2 * lift) * sigma;
      const double power = lifted ? lift : p_ * outcome.l;
      const double others = std::log1p(std::abs(p_)) + std::max(outcome.l, 0.0) + 1.1;  // 1 + |p|(w + 1)
      sum += share *
             (std::exp(outcome.log_weight + power - log_scale) + std::exp(outcome.log_weight + others - log_scale));
    }
    return sum;
  }

  const Mesh& mesh_;
  double p_, c_;
  size_t first_, last_;
  double largest_u_ = 0, largest_l_ = 0, largest_exponent_ = 0, nodes_ = 0;
};

// By M - 1, if M is not large.
RealMoment as_excess(std::span<const Outcome> outcomes, double p, double sign, const Errors& errors) {
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
  const double powers = m;
  m += p * sum_d;
  const double mean = sign * (m1 + sum_d) / (1 + m);
  const double error = errors.of_excess(powers, sum_d, m);
  const double log_m = std::log1p(m);
  // |log(1+m) - log(1+m')| <= error/(1+m-error) if |m - m'| <= error.
  const double of_log = error < 0.5 ? error / (1 + m - error) + kRounding * std::abs(log_m) : kInfinity;
  return {log_m, mean, m2 / (1 + m) - mean * mean, of_log};
}

// By M·e^-top, top the logarithm of the largest term.
RealMoment relative_to(double top, std::span<const Outcome> outcomes, double p, double sign, const Errors& errors) {
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
  const double log_m = top + std::log(m);
  const double error = errors.of_logarithm(top, log_m);
  return {log_m, sign * mean, m2 / m, error < 0.5 ? error / (1 - error) : kInfinity};
}

// The moment from the outcomes of this mesh that count at c.
RealMoment moment_on(Mesh& mesh, double c) {
  const auto [q, sigma] = mesh.release;
  const bool remove = mesh.direction == Direction::kRemove;
  const double p = remove ? 1 + c : -c;
  const auto [low, high] = outcomes_that_count(mesh.direction, q, sigma, c);
  const auto first = static_cast<size_t>(std::max(0.0, std::floor(low / mesh.h) - mesh.first));
  const auto end = static_cast<size_t>(std::floor(high / mesh.h) - mesh.first) + 2;
  if (mesh.outcomes.size() < end) grow(mesh, end);
  const std::span<const Outcome> outcomes(mesh.outcomes.data() + first, end - first);
  double top = -kInfinity;
  for (const Outcome& outcome : outcomes) top = std::max(top, outcome.log_weight + p * outcome.l);
  const double sign = remove ? 1 : -1;  // d p/d z
  const Errors errors(mesh, first, end, c);
  return top < 3 ? as_excess(outcomes, p, sign, errors) : relative_to(top, outcomes, p, sign, errors);
}

RealMoment gaussian_moment(double sigma, double c) {
  const double precision = 1 / (sigma * sigma);
  const double log_m = c * (1 + c) / 2 * precision;
  return {log_m, (1 + 2 * c) / 2 * precision, precision, 3 * kRounding * log_m};
}

}  // namespace

RealMoment real_moment(Direction direction, SampledGaussian release, double c) {
  if (release.q == 1) return gaussian_moment(release.sigma, c);
  thread_local std::vector<Mesh> kept;
  Mesh& mesh = mesh_of(kept, direction, release, c);
  const RealMoment found = moment_on(mesh, c);
  if (mesh.outcomes.size() > kMostOutcomes) kept.erase(kept.begin());
  return found;
}

RealMoment moment_of_phase(Direction direction, const ComposedRelease& phase, double c) {
  RealMoment first = real_moment(direction, phase.release, c);
  if (!phase.is_mixture()) return first;
  std::vector<std::pair<double, RealMoment>> parts = {{phase.weight, first}, {phase.nothing, {0, 0, 0, 0}}};
  double top = first.log_m;
  for (const auto& [weight, release] : phase.alternatives) {
    parts.emplace_back(weight, real_moment(direction, release, c));
    top = std::max(top, parts.back().second.log_m);
  }
  // Relative to e^top if that is large, else as M - 1 = Σ weight·(M_i - 1) + (Σ weight - 1).
  const double base = top > 1 ? top : 0;
  double m = 0;
  double sum = -std::exp(-base);
  double mean = 0;
  double square = 0;
  double error = 0;
  for (const auto& [weight, one] : parts) {
    const double share = weight * std::exp(one.log_m - base);
    m += share;
    sum += base > 0 ? share : weight * std::expm1(one.log_m) + weight;
    mean += share * one.mean;
    square += share * (one.variance + one.mean * one.mean);
    error += share * (std::expm1(one.error) + kRounding * (8 + std::abs(one.log_m - base)));
  }
  error += 8 * kRounding;
  const double log_m = base > 0 ? base + std::log(m) : std::log1p(sum);
  mean /= m;
  const double of_log = error < 0.5 * m ? 1.01 * error / (m - error) + 2 * kRounding * std::abs(log_m) : kInfinity;
  return {log_m, mean, square / m - mean * mean, of_log};
}

std::optional<RealMoment> real_moment_to(Direction direction, SampledGaussian release, double c, double precision,
                                         double most_nodes) {
  if (release.q == 1) return gaussian_moment(release.sigma, c);
  Mesh mesh = mesh_for(direction, release, c, precision);
  const auto [low, high] = outcomes_that_count(direction, release.q, release.sigma, c);
  if (!((high - low) / mesh.h <= most_nodes)) return std::nullopt;
  return moment_on(mesh, c);
}

}  // namespace ghostshard::accountant
