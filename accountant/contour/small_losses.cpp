#include "accountant/contour/small_losses.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/moment_strip.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kAngle = 0.2 * std::numbers::pi;  // theta
constexpr double kDigits = 50;                     // of the rule
constexpr double kNothing = 2e4;                   // s·v from which on nothing is left
constexpr double kMostExponent = 4e3;
constexpr double kMostNodes = 200'000;
constexpr double kLeastSigma = 0.025;   // below, the mesh has too many nodes
constexpr double kLeastEpsilon = 1e-3;  // below, a line of large losses is long too
constexpr double kLargestOrder = 2e4;   // of a moment that is not cut
// Multiples of 1/epsilon at which Chernoff's bound is looked at.
constexpr std::array kOrders = {12.0, 18.0, 27.0, 40.0, 60.0, 90.0, 135.0, 200.0, 300.0};
constexpr int kHalvings = 10;
constexpr double kDearer = 2;  // s may be so much larger if a phase is not cut

double log_w(double q, double u) {
  if (u > 300) return std::log(q) + u;
  const double v = q * std::expm1(u);
  return v < -0.5 ? std::log((1 - q) + q * std::exp(u)) : std::log1p(v);
}

// log beta; sv: s·v. beta <= 16·y, and nearly that much where y is small. 1 - y = -expm1(-sv) errs by the roundings of
// sv at most, and beta by sixteen times that of 1 - y.
double log_beta(double sv) {
  if (sv > 40) return std::log(16.0) - sv;
  const double y = std::exp(-sv);
  return std::log(-std::expm1(16 * (y < 0.5 ? std::log1p(-y) : std::log(-std::expm1(-sv)))));
}

// Some hundred outcomes of one release, to look where the cut should be. Nothing of it is part of a proof.
struct Sketched {
  struct Outcome {
    double log_mass, l, log_v;
  };
  std::vector<Outcome> outcomes;
  double count;
  bool whole = false;
  std::array<double, kOrders.size()> uncut{};  // log of the whole moment

  explicit Sketched(const ComposedRelease& phase) : count(phase.count) {
    const auto [q, sigma] = phase.release;
    const double step = std::min(sigma / 3, sigma * sigma / 2);
    const double far = 1 + 8 * sigma;
    const double near = std::max(-8 * sigma, 0.5 + sigma * sigma * -60);
    double below = 0.5 * std::erfc(-near / sigma / std::numbers::sqrt2);  // all of it has hardly any loss
    for (double x = near; x < far; x += step) {
      const double u = (2 * x - 1) / (2 * sigma * sigma);
      double log_mass = std::log(step / (sigma * kSqrtTwoPi)) - x * x / (2 * sigma * sigma);
      if (below > 0) log_mass = std::log(std::exp(log_mass) + below);
      outcomes.push_back({log_mass, log_w(q, u), std::log(q) + u});
      below = 0;
    }
  }

  double log_power(size_t order, double c, double log_s) const {
    if (whole) return count * uncut[order];
    double sum = 0;
    for (const auto& [log_mass, l, log_v] : outcomes) {
      const double log_sv = log_s + log_v;
      if (log_sv < 8) sum += std::exp(log_mass + (1 + c) * l + log_beta(std::exp(log_sv)));
      sum -= std::exp(log_mass + l);
    }
    return count * std::log1p(std::max(sum, -0.999));
  }
};

// The best order at this cut, and the bound there.
std::pair<double, double> look(const std::vector<Sketched>& all, double epsilon, double log_s) {
  std::pair best{kOrders.front() / epsilon, kInfinity};
  double before = kInfinity;
  for (size_t i = 0; i < kOrders.size(); ++i) {
    const double c = kOrders[i] / epsilon;
    double k = 0;
    for (const Sketched& one : all) k += one.log_power(i, c, log_s);
    const double found = log_chernoff(c, k, epsilon);
    if (found < best.second) best = {c, found};
    if (!(found < before)) break;  // convex in c, but for κ
    before = found;
  }
  return best;
}

}  // namespace

double LossCut::log_small(double epsilon) const {
  double least = kInfinity;
  for (const auto& [c, k] : moments) least = std::min(least, log_chernoff(c, k, epsilon));
  return least;
}

// Roundings of a term's exponent, in units: log w errs by 45 + 3u/2, u > 0, or 45 where u < 0, since an error of u
// changes w by 3|u|·e^u/2 units, below what e^u counts beside 1 - q; s·v by its own logarithm's, |log s| + |log q| +
// 3|u|/2 + 8; x²/(2 sigma²) by three of itself; the sum of them by as much as they are.
double log_small_moment(SampledGaussian release, double count, double c, double log_s) {
  const auto [q, sigma] = release;
  const double log_q = std::log(q);
  const double most_u = std::log(kNothing) - log_s - log_q;
  const double d = std::min(kAngle * sigma * sigma, 8 * sigma);
  const double precision = kDigits + std::log(std::max(1.0, count));
  const double h = exact_step(mesh_step(Direction::kRemove, sigma, c, 0, d, precision));
  const double cosine = std::cos(d / (sigma * sigma)) * (1 - 1e-14);
  const double low = std::floor(-kTail * sigma / h);
  const double high = std::floor((sigma * sigma * most_u + 0.5) / h) + 1;
  if (!(high > low) || !(high - low < kMostNodes) || !(high * h > 0.5)) return kInfinity;
  const double log_h = std::log(h / (sigma * kSqrtTwoPi));
  // W: w^(1+c)·e^(-s·v·cosine) rises up to this s·v.
  const double turn = std::max(0.0, (1 + c) / cosine - std::exp(log_s) * (1 - q));
  const double w_of_turn =
      log_s < -600 ? std::log(std::max(turn, 1e-300)) - log_s : std::log((1 - q) + turn / std::exp(log_s));
  const double log_top = (1 + c) * w_of_turn - turn * cosine;
  double sum = 0;
  double cells = 0;
  double before = -kInfinity;  // log of w^(1+c)·e^(-s·v·cosine)
  double density_before = -kInfinity;
  double sv_before = 0;
  double power = 0;
  for (double i = low; i <= high; ++i) {
    const double x = i * h;
    const double u = (2 * x - 1) / (2 * sigma * sigma);
    const double sv = std::exp(log_s + log_q + u);
    const double density = log_h - x * x / (2 * sigma * sigma);
    power = (1 + c) * log_w(q, u);
    if (!(power <= kMostExponent)) return kInfinity;
    const double exponent = density + power + log_beta(sv);
    const double error =
        2 * kRounding *
        ((1 + c) * (45 + 1.5 * std::max(u, 0.0)) + sv * (std::abs(log_s) + std::abs(log_q) + 1.5 * std::abs(u) + 10) +
         3 * std::abs(density) + std::abs(power) + 20);
    if (error < 0.1)
      sum += std::exp(exponent) * (1 + 1.1 * error);
    else if (sv < 2000)  // otherwise no number is left, whatever the error
      return kInfinity;
    const double here = power - sv * cosine * (1 - 1e-9);
    const double largest = sv_before <= turn && turn <= sv * (1 + 1e-9) ? log_top : std::max(before, here);
    const double densest = x >= 0 && x - h <= 0 ? log_h : std::max(density_before, density);
    cells += std::exp(largest + densest);
    before = here;
    density_before = density;
    sv_before = sv * (1 - 1e-9);
  }
  // Outcomes before the first node have w <= 1 and beta <= 1; beyond the last one w^(1+c)·e^(-s·v·cosine) falls from
  // e^-5000 on, since cosine > 0.8.
  if (!(turn < sv_before)) return kInfinity;
  const double outside = 16 * std::exp(-kTail * kTail / 2);
  const double rule = 0x1p17 * std::exp(-precision) * (cells + outside) * (1 + 1e-6);
  const double all = sum * (1 + kRounding * (high - low)) + rule + outside + 1e-300 * (high - low);
  return all < kInfinity ? std::log(all) + 4 * kRounding * std::abs(std::log(all)) : kInfinity;
}

std::optional<LossCut> cut_losses(std::span<const ComposedRelease> phases, double epsilon, double log_delta,
                                  double digits) {
  if (!(epsilon > kLeastEpsilon)) return std::nullopt;
  std::vector<Sketched> all;
  for (const ComposedRelease& phase : phases) {
    if (phase.is_mixture() || phase.is_table() || !(phase.release.q < 1)) return std::nullopt;
    if (phase.release.sigma < kLeastSigma) return std::nullopt;
    all.emplace_back(phase);
  }
  const double wanted = log_delta - digits;
  const auto log_of = [](double x) { return x < 30 ? std::log(std::expm1(x)) : x; };
  double low = -log_of(epsilon);
  double high = std::log(2000.0) - log_of(epsilon / 30);
  if (!(look(all, epsilon, high).second <= wanted)) return std::nullopt;
  const auto halve = [&](double from) {
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = from + (high - from) / 2;
      (look(all, epsilon, middle).second <= wanted ? high : from) = middle;
    }
  };
  halve(low);
  LossCut cut{.log_s = 0, .whole = std::vector<bool>(phases.size(), false)};
  if (phases.size() > 1 && kOrders.back() / epsilon < kLargestOrder) {
    // What is not cut costs nothing, and need not fall along the line.
    const double cut_all = high;
    for (size_t j = 0; j < phases.size(); ++j) {
      for (size_t i = 0; i < kOrders.size(); ++i)
        all[j].uncut[i] = real_moment(Direction::kRemove, phases[j].release, kOrders[i] / epsilon).log_m;
      all[j].whole = cut.whole[j] = true;
      if (!(look(all, epsilon, cut_all + std::log(kDearer)).second <= wanted)) all[j].whole = cut.whole[j] = false;
    }
    if (look(all, epsilon, high).second > wanted) {
      high = cut_all + std::log(kDearer);
      halve(cut_all);
    }
  }
  cut.log_s = high;
  const double best = look(all, epsilon, high).first;
  for (const double c : {best / 1.25, best, best * 1.25}) {
    double k = 0;
    double size = 0;
    for (size_t j = 0; j < phases.size(); ++j) {
      double one = 0;
      if (cut.whole[j]) {
        const RealMoment moment = real_moment(Direction::kRemove, phases[j].release, c);
        one = phases[j].count * (moment.log_m + moment.error);
      } else {
        one = phases[j].count * log_small_moment(phases[j].release, phases[j].count, c, cut.log_s);
      }
      k += one;
      size += std::abs(one);
    }
    if (k < kInfinity) cut.moments.emplace_back(c, k + kRounding * (2 + static_cast<double>(phases.size())) * size);
  }
  if (cut.moments.empty()) return std::nullopt;
  return cut;
}

}  // namespace ghostshard::accountant
