// Cells of releases whose rates differ as well as their sigmas (sigma_rule.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "accountant/contour/pair_rule.h"
#include "accountant/contour/sigma_rule.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr std::array kAngles = {0.1, 0.2, 0.4, 0.7};  // largest theta, and phi if noise allows it
constexpr size_t kMostProducts = 300;
constexpr size_t kFew = 24;  // releases that are left as they are
constexpr int kMostDepth = 8;
constexpr double kPairTolerance = 1e-8;  // of the logarithm of all moments together

double place_v(const ComposedRelease& phase) { return -2 * std::log(phase.release.sigma); }
double place_q(const ComposedRelease& phase) { return std::log(phase.release.q); }

// Σ ρ^-m·ρ'^-n over all that are not among these products.
double beyond(const Degrees& degrees, double rho_x, double rho_y) {
  const double tail_y = 1 / (1 - 1 / rho_y);
  double sum = std::pow(rho_x, -static_cast<double>(degrees.x + 1)) / (1 - 1 / rho_x) * tail_y;
  for (size_t m = 0; m <= degrees.x; ++m)
    sum += std::pow(rho_x, -static_cast<double>(m)) * std::pow(rho_y, -static_cast<double>(degrees.last_y(m) + 1)) *
           tail_y;
  return sum * (1 + 1e-12);
}

}  // namespace

// Rounded away from the truth, by more than they err. `missing` is left open.
std::array<SigmaRule::Ellipse, SigmaRule::kEllipses> SigmaRule::ellipses_of(const Box& box) {
  std::array<Ellipse, kEllipses> found{};
  for (size_t i = 0; i < kEllipses; ++i) {
    const double theta = kAngles[i];
    const double phi = std::min(theta, std::exp(box.middle_v / 2));
    ComplexReleases& releases = found[i].releases;
    releases = {.least_v = std::exp(box.middle_v - std::hypot(theta, box.half_v)) * (1 - 1e-12),
                .most_v = std::exp(box.middle_v + std::hypot(theta, box.half_v)) * (1 + 1e-12),
                .theta = theta,
                .most_q = std::exp(box.middle_q + std::hypot(phi, box.half_q)) * (1 + 1e-12),
                .phi = phi};
    found[i].most_v = releases.most_v / std::cos(theta) * (1 + 1e-12);
    found[i].growth = density_factor(releases);
  }
  return found;
}

// The fewest products that do, nothing if none do.
std::optional<Degrees> SigmaRule::degrees_for(const Box& box, const Wanted& wanted) const {
  std::optional<Degrees> best;
  for (const Ellipse& ellipse : ellipses_of(box)) {
    const double excess = excess_bound(direction_, wanted.c, wanted.end, ellipse.releases);
    if (!(excess < kMostExcess)) break;
    const double most = -std::log1p(-excess);
    const double rho_v = half_axes(box.half_v, ellipse.releases.theta);
    const double rho_q = half_axes(box.half_q, ellipse.releases.phi);
    if (!(rho_v > 1 + 1e-9 && rho_q > 1 + 1e-9)) continue;
    for (double digits = 5;; digits += 0.5) {
      const Degrees degrees{static_cast<size_t>(std::ceil(digits / std::log(rho_v))),
                            static_cast<size_t>(std::ceil(digits / std::log(rho_q)))};
      if (std::min(degrees.x * degrees.y, degrees.x + degrees.y) > kMostProducts || degrees.products() > kMostProducts)
        break;
      if (8 * most * beyond(degrees, rho_v, rho_q) > kPairTolerance / kTolerance * wanted.share) continue;
      if (!best || degrees.products() < best->products()) best = degrees;
      break;
    }
  }
  return best;
}

SigmaRule::Division SigmaRule::divide(std::vector<ComposedRelease> releases, const Wanted& wanted, int depth) const {
  Box box{};
  const auto [low_v, high_v] =
      std::minmax_element(releases.begin(), releases.end(),
                          [](const auto& one, const auto& other) { return place_v(one) < place_v(other); });
  const auto [low_q, high_q] =
      std::minmax_element(releases.begin(), releases.end(),
                          [](const auto& one, const auto& other) { return place_q(one) < place_q(other); });
  box.middle_v = (place_v(*low_v) + place_v(*high_v)) / 2;
  box.middle_q = (place_q(*low_q) + place_q(*high_q)) / 2;
  box.half_v = (place_v(*high_v) - place_v(*low_v)) / 2 + 1e-9;
  box.half_q = (place_q(*high_q) - place_q(*low_q)) / 2 + 1e-9;
  const size_t size = releases.size();
  std::optional<Degrees> degrees;
  if (size > kFew) degrees = degrees_for(box, wanted);
  if (degrees && 5 * degrees->products() > 4 * size) degrees.reset();
  Division whole{degrees ? degrees->products() : size, {}};
  const bool is_enough = size <= kFew || depth == kMostDepth || (degrees && degrees->products() <= kFew);
  if (!is_enough) {
    const double angle = std::min(kAngles.back(), std::exp(box.middle_v / 2));
    const bool by_noise = box.half_v / kAngles.back() > box.half_q / angle;
    const auto middle = std::partition(releases.begin(), releases.end(), [&](const ComposedRelease& phase) {
      return by_noise ? place_v(phase) < box.middle_v : place_q(phase) < box.middle_q;
    });
    if (middle != releases.begin() && middle != releases.end()) {
      Division left = divide({releases.begin(), middle}, wanted, depth + 1);
      Division right = divide({middle, releases.end()}, wanted, depth + 1);
      if (left.nodes + right.nodes < whole.nodes) {
        left.nodes += right.nodes;
        std::move(right.cells.begin(), right.cells.end(), std::back_inserter(left.cells));
        return left;
      }
    }
  }
  whole.cells.push_back({std::move(releases), degrees});
  return whole;
}

void SigmaRule::take_pair_cell(const PairCell& planned) {
  const auto& [releases, degrees] = planned;
  if (!degrees) return take_exact(releases);
  const auto log_of = [](double value) { return std::log(static_cast<long double>(value)); };
  long double low_v = 1e300L;
  long double high_v = -1e300L;
  long double low_q = 1e300L;
  long double high_q = -1e300L;
  Cell cell{.first = phases_.size(), .size = 0, .exact = false, .pair = true};
  for (const auto& phase : releases) {
    const long double v = -2 * log_of(phase.release.sigma);
    const long double q = log_of(phase.release.q);
    low_v = std::min(low_v, v);
    high_v = std::max(high_v, v);
    low_q = std::min(low_q, q);
    high_q = std::max(high_q, q);
    cell.executions += phase.count;
    cell.variances += phase.count * phase.release.sigma * phase.release.sigma;
  }
  cell.variances *= 1 + 4 * kRounding * static_cast<double>(releases.size());
  const long double half_v = (high_v - low_v) / 2 * (1 + 1e-12L) + 1e-9L;
  const long double half_q = (high_q - low_q) / 2 * (1 + 1e-12L) + 1e-9L;
  const Box box{static_cast<double>((low_v + high_v) / 2), static_cast<double>(half_v),
                static_cast<double>((low_q + high_q) / 2), static_cast<double>(half_q)};
  std::vector<PairMass> measure;
  for (const auto& phase : releases)
    measure.push_back({(-2 * log_of(phase.release.sigma) - (low_v + high_v) / 2) / half_v,
                       (log_of(phase.release.q) - (low_q + high_q) / 2) / half_q, phase.count});
  const std::vector<Chosen> rule = pair_rule(measure, *degrees);
  for (const auto& [index, weight] : rule) phases_.push_back({releases[index].release, weight});
  cell.size = rule.size();
  const double of_place =
      8 + 8 * ((std::abs(box.middle_v) + box.half_v) / box.half_v + (std::abs(box.middle_q) + box.half_q) / box.half_q);
  const std::vector<double> missed = pair_misses(measure, rule, *degrees, of_place);
  cell.miss = missed.front();
  cell.ellipses = ellipses_of(box);
  for (Ellipse& ellipse : cell.ellipses) {
    const double rho_v = half_axes(box.half_v, ellipse.releases.theta) * (1 - 1e-12);
    const double rho_q = half_axes(box.half_q, ellipse.releases.phi) * (1 - 1e-12);
    double sum = 0;
    size_t place = 0;
    for (size_t m = 0; m <= degrees->x; ++m)
      for (size_t n = 0; n <= degrees->last_y(m); ++n)
        sum += (m > 0 ? 2 : 1) * (n > 0 ? 2 : 1) * std::pow(rho_v, -static_cast<double>(m)) *
               std::pow(rho_q, -static_cast<double>(n)) * missed[place++];
    // Both for all releases and for the rule, whose counts add up to as many.
    sum += 4 * (2 * cell.executions + cell.miss) * beyond(*degrees, rho_v, rho_q);
    ellipse.missing = sum * (1 + 1e-12);
  }
  cells_.push_back(cell);
}

// An upper bound on |∫ k_v·G|.
double SigmaRule::rest_on(const Cell& cell, size_t ellipse, double c) const {
  const auto& [most_v, growth, missing, releases] = cell.ellipses[ellipse];
  const double q = releases.most_q;
  if (!(q < 1)) return kInfinity;
  if (direction_ == Direction::kAdd) return growth * std::pow(1 - q, -c) * (1 + 1e-9);
  const double sigma = 1 / std::sqrt(most_v) * (1 - 1e-14);
  if (sigma < kLeastResolvedSigma) return kInfinity;
  const RealMoment moment = real_moment(direction_, {q, sigma}, c);
  const double wider =
      std::max(std::log1p(q * releases.phi / (1 - q)), releases.phi * std::tan(releases.theta)) * (1 + c);
  const double bound = growth * std::exp(moment.log_m + moment.error + wider) * (1 + 1e-9);
  return bound >= 0 ? bound : kInfinity;
}

}  // namespace ghostshard::accountant
