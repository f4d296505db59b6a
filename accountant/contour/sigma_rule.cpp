#include "accountant/contour/sigma_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/contour/gauss_rule.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr size_t kMostOnLine = 1500;
constexpr size_t kManyAlike = 12;   // releases of one rate
constexpr size_t kMostInCell = 24;  // nodes
constexpr size_t kFewInCell = 3;    // releases that are left as they are
constexpr size_t kShareLeft = 24;   // of all, if no rule is good enough for the first
constexpr std::array kWidths = {0.6, 0.42, 0.3, 0.21, 0.15, 0.1, 0.07, 0.05, 0.035, 0.025};  // half widths of cells
constexpr std::array kAngles = {0.2, 0.4, 0.7, 1.0};                                         // largest theta

// Of a double, with long double's digits; it errs by a unit of itself or two.
long double log_v(const ComposedRelease& phase) { return -2 * std::log(static_cast<long double>(phase.release.sigma)); }

}  // namespace

// Both are rounded away from the truth, by more than they err.
std::array<SigmaRule::Ellipse, SigmaRule::kEllipses> SigmaRule::ellipses_of(double middle, double width, double q) {
  std::array<Ellipse, kEllipses> found{};
  for (size_t i = 0; i < kEllipses; ++i) {
    const double angle = kAngles[i];
    const double modulus = std::exp(middle + std::hypot(angle, width)) * (1 + 1e-12);
    const double cosine = std::cos(angle) * (1 - 1e-12);
    const double sine = std::sin(angle);
    found[i].most_v = modulus / cosine;
    found[i].growth = std::exp(modulus * sine * sine / (8 * cosine)) / std::sqrt(cosine) * (1 + 1e-12);
    found[i].releases = {.least_v = std::exp(middle - std::hypot(angle, width)) * (1 - 1e-12),
                         .most_v = modulus,
                         .theta = angle,
                         .most_q = q};
  }
  return found;
}

// C·(M(c; v') - 1), rounded up.
double SigmaRule::excess_on(const Ellipse& ellipse, double q, double c) const {
  const double sigma = 1 / std::sqrt(ellipse.most_v) * (1 - 1e-14);
  if (sigma < kLeastResolvedSigma) return kInfinity;
  const RealMoment moment = real_moment(direction_, {q, sigma}, c);
  const double excess = ellipse.growth * std::expm1(moment.log_m + moment.error) * (1 + 1e-12);
  return excess >= 0 ? excess : kInfinity;  // NaN becomes infinity
}

// ---------------------------------------------------------------------------------------------------------------------
// The choice of cells: nothing of it is part of a proof

// The fewest nodes that do, 0 if none do.
size_t SigmaRule::nodes_for(double middle, double width, double q, const Wanted& wanted) const {
  size_t fewest = 0;
  const auto ellipses = ellipses_of(middle, width, q);
  const double ratio = ratio_of(wanted.c, wanted.end);
  for (size_t i = 0; i < kEllipses; ++i) {
    double excess = excess_on(ellipses[i], q, wanted.c) * ratio;
    if (!(excess < kEasyExcess)) excess = excess_bound(direction_, wanted.c, wanted.end, ellipses[i].releases);
    if (!(excess < kMostExcess)) break;  // the wider ones exceed it too
    const double most = -std::log1p(-excess);
    const double rho = half_axes(width, kAngles[i]);
    const double needed = std::log(4 * most / (1 - 1 / rho) / wanted.share) / (2 * std::log(rho));
    const auto nodes = static_cast<size_t>(std::max(2.0, std::ceil(needed)));
    if (nodes <= kMostInCell && (fewest == 0 || nodes < fewest)) fewest = nodes;
  }
  return fewest;
}

// How many of these releases, which begin with the least sigma, to put together: the fewest nodes for what they cover.
std::optional<SigmaRule::Choice> SigmaRule::choose(std::span<const ComposedRelease> alike, const Wanted& wanted) const {
  const auto top = static_cast<double>(log_v(alike.front()));
  const double all = top - static_cast<double>(log_v(alike.back())) + 1e-9;
  std::optional<Choice> best;
  double least = kInfinity;
  for (const double half : kWidths) {
    if (half > all && half != kWidths.back()) continue;
    const auto end = std::partition_point(alike.begin(), alike.end(), [&](const ComposedRelease& phase) {
      return static_cast<double>(log_v(phase)) >= top - 2 * half;
    });
    const auto size = static_cast<size_t>(end - alike.begin());
    const double width = std::max((top - static_cast<double>(log_v(alike[size - 1]))) / 2, 1e-6);
    size_t nodes = nodes_for(top - width, width, alike.front().release.q, wanted);
    if (nodes == 0) continue;
    nodes = std::min(nodes, size);
    const double cost = static_cast<double>(nodes) / std::min(2 * half, all);
    if (cost < least) {
      least = cost;
      best = Choice{size, nodes, width};
    } else if (cost > 1.3 * least) {
      break;
    }
  }
  return best;
}

void SigmaRule::take_exact(std::span<const ComposedRelease> releases) {
  cells_.push_back({.first = phases_.size(), .size = releases.size()});
  phases_.insert(phases_.end(), releases.begin(), releases.end());
}

void SigmaRule::take_cell(std::span<const ComposedRelease> releases, size_t nodes) {
  if (nodes >= releases.size() || releases.size() <= kFewInCell) return take_exact(releases);
  const long double top = log_v(releases.front());
  const long double bottom = log_v(releases.back());
  const long double middle = (top + bottom) / 2;
  const long double width = (top - bottom) / 2 * (1 + 1e-12L);
  Cell cell{.first = phases_.size(), .size = 0, .exact = false, .q = releases.front().release.q};
  std::vector<Mass> measure;
  for (const ComposedRelease& phase : releases) {
    measure.push_back({(log_v(phase) - middle) / width, phase.count});
    cell.executions += phase.count;
    cell.variances += phase.count * phase.release.sigma * phase.release.sigma;
  }
  cell.variances *= 1 + 4 * kRounding * static_cast<double>(releases.size());
  std::vector<Mass> rule = gauss_rule(measure, nodes);
  for (Mass& mass : rule) {
    // The sigma of a node is a double: its place is where that lies.
    const auto sigma = static_cast<double>(std::exp(-(middle + mass.x * width) / 2));
    phases_.push_back({{cell.q, sigma}, mass.weight});
    mass.x = (log_v(phases_.back()) - middle) / width;
  }
  cell.size = rule.size();
  const size_t degree = 2 * rule.size() - 1;
  const double of_place = 8 + 8 * static_cast<double>((std::abs(middle) + width) / width);
  const std::vector<double> missed = misses(measure, rule, degree, of_place);
  cell.miss = missed.front();
  cell.ellipses = ellipses_of(static_cast<double>(middle), static_cast<double>(width), cell.q);
  for (size_t i = 0; i < kEllipses; ++i) {
    const double rho = half_axes(static_cast<double>(width), kAngles[i]) * (1 - 1e-12);
    double sum = missed.front();
    for (size_t m = 1; m <= degree; ++m) sum += 2 * std::pow(rho, -static_cast<double>(m)) * missed[m];
    sum += 2 * (2 * cell.executions + missed.front()) * std::pow(rho, -static_cast<double>(degree + 1)) / (1 - 1 / rho);
    cell.ellipses[i].missing = sum * (1 + 1e-12);
  }
  cells_.push_back(cell);
}

void SigmaRule::take(std::span<const ComposedRelease> alike, const Wanted& wanted) {
  while (!alike.empty()) {
    if (alike.size() <= kFewInCell || alike.front().release.q == 1) {
      take_exact(alike);
      return;
    }
    const auto choice = choose(alike, wanted);
    if (!choice) {  // little noise: at the end of the line their moments are small
      const auto few = std::max<size_t>(1, alike.size() / kShareLeft);
      take_exact(alike.first(few));
      alike = alike.subspan(few);
      continue;
    }
    take_cell(alike.first(choice->size), choice->nodes);
    alike = alike.subspan(choice->size);
  }
}

std::optional<SigmaRule> SigmaRule::make(Direction direction, std::span<const ComposedRelease> all, double c,
                                         double scale, double finer) {
  double executions = 0;
  for (const ComposedRelease& phase : all) executions += phase.count;
  const Wanted wanted{c, kTolerance / (executions * finer), kPastEnd * scale};
  SigmaRule rule(direction);
  rule.scale_ = scale;
  std::vector<ComposedRelease> scattered;  // their rates are those of few
  for (size_t first = 0; first < all.size();) {
    size_t end = first;
    while (end < all.size() && all[end].release.q == all[first].release.q) {
      if (end > first && !(all[end].release.sigma > all[end - 1].release.sigma)) return std::nullopt;  // no order
      ++end;
    }
    const auto alike = all.subspan(first, end - first);
    if (alike.size() >= kManyAlike || alike.front().release.q == 1)
      rule.take(alike, wanted);
    else
      scattered.insert(scattered.end(), alike.begin(), alike.end());
    first = end;
  }
  if (!scattered.empty())
    for (const PairCell& planned : rule.divide(std::move(scattered), wanted, 0).cells) rule.take_pair_cell(planned);
  // Little is saved, of more than a line takes in a second.
  if (rule.phases_.size() > kMostOnLine && 2 * rule.phases_.size() > all.size()) return std::nullopt;
  rule.last_angle_.assign(rule.cells_.size(), 0);
  return rule;
}

}  // namespace ghostshard::accountant
