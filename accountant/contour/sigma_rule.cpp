#include "accountant/contour/sigma_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/contour/gauss_rule.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kMostExcess = 0.9;   // β, beyond which nothing is said
constexpr double kEasyExcess = 0.5;   // β, below which it need not be less
constexpr double kLevels = 1.5;       // from one t to the next that β is known at
constexpr int kLastLevel = 2;
constexpr size_t kMostOnLine = 1500;
constexpr size_t kManyAlike = 12;     // releases of one rate
constexpr double kWidestAngles = 1.5; // of both: below pi/2
constexpr double kPastEnd = 1.1;      // what a rule is made for, beside the end of a line: level 0
constexpr double kTolerance = 3e-11;  // of the logarithm of all moments together
constexpr size_t kMostInCell = 24;    // nodes
constexpr size_t kFewInCell = 3;      // releases that are left as they are
constexpr size_t kShareLeft = 24;     // of all, if no rule is good enough for the first
constexpr double kLeastMean = -0.9;   // of a bound less 1: it keeps its digits
constexpr std::array kWidths = {0.6, 0.42, 0.3, 0.21, 0.15, 0.1, 0.07, 0.05, 0.035, 0.025};  // half widths of cells
constexpr std::array kAngles = {0.2, 0.4, 0.7, 1.0};                                         // largest theta

// Of a double, with long double's digits; it errs by a unit of itself or two.
long double log_v(const ComposedRelease& phase) { return -2 * std::log(static_cast<long double>(phase.release.sigma)); }

double ratio_of(double c, double t) { return std::hypot(c, t) * std::hypot(1 + c, t) / (c * (1 + c)); }

double half_axes(double width, double angle) {  // ρ: the half axis across is angle/width
  const double across = angle / width;
  return across + std::sqrt(1 + across * across);
}

}  // namespace

// Both are rounded away from the truth, by more than they err.
std::array<SigmaRule::Ellipse, SigmaRule::kEllipses> SigmaRule::ellipses_of(double middle, double width,
                                                                                  double q) {
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
    sum += 4 * cell.executions * std::pow(rho, -static_cast<double>(degree + 1)) / (1 - 1 / rho);
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
                                         double scale) {
  double executions = 0;
  for (const ComposedRelease& phase : all) executions += phase.count;
  const Wanted wanted{c, kTolerance / executions, kPastEnd * scale};
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

void SigmaRule::align(std::span<PhaseMoment> moments) const {
  for (const Cell& cell : cells_) {
    if (cell.exact) continue;
    double widest = kInfinity;
    const auto of_cell = moments.subspan(cell.first, cell.size);
    for (PhaseMoment& moment : of_cell) widest = std::min(widest, moment.pair().angle_of(0));
    if (cell.pair) widest = std::min(widest, kWidestAngles - cell.ellipses.back().releases.phi);
    for (PhaseMoment& moment : of_cell) moment.pair().limit_angle(widest);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The errors

SigmaRule::AtIntercept& SigmaRule::at_intercept(double c) const {
  const auto [place, is_new] = known_.try_emplace(c);
  if (is_new)
    for (const Cell& cell : cells_) {
      auto& excess = place->second.excess.emplace_back();
      auto& rest = place->second.rest.emplace_back();
      excess.fill(kInfinity);
      rest.fill(kInfinity);
      for (size_t i = 0; !cell.exact && i < kEllipses; ++i) {
        if (cell.pair) {
          rest[i] = rest_on(cell, i, c);
          continue;
        }
        excess[i] = excess_on(cell.ellipses[i], cell.q, c);
        rest[i] = excess[i] + cell.ellipses[i].growth;
        if (!(excess[i] < kMostExcess)) break;  // the wider ones exceed it too
      }
    }
  return place->second;
}

double SigmaRule::end_of(int level) const { return kPastEnd * scale_ * std::pow(kLevels, level); }

// The first with t below its end; beyond the last, none.
int SigmaRule::level_of(double t) const {
  int level = static_cast<int>(std::ceil(std::log(std::max(t / (kPastEnd * scale_), 1e-3)) / std::log(kLevels)));
  while (level <= kLastLevel && end_of(level) < t) ++level;
  return level;
}

const SigmaRule::Moments& SigmaRule::far_at(double c, int level) const {
  AtIntercept& here = at_intercept(c);
  const auto [place, is_new] = here.far.try_emplace(level);
  if (!is_new) return place->second;
  const double end = end_of(level);
  const double ratio = ratio_of(c, end) * (1 + 16 * kRounding);
  for (size_t j = 0; j < cells_.size(); ++j) {
    auto& found = place->second.emplace_back();
    found.fill(kInfinity);
    for (size_t i = 0; !cells_[j].exact && i < kEllipses; ++i) {
      found[i] = here.excess[j][i] * ratio;
      if (!(found[i] < kEasyExcess))
        found[i] = std::min(found[i], excess_bound(direction_, c, end, cells_[j].ellipses[i].releases));
      if (!(found[i] < kMostExcess)) break;  // the wider ones exceed it too
    }
  }
  return place->second;
}

double SigmaRule::log_error(double c, double t) const {
  const Moments& near = at_intercept(c).excess;
  const double ratio = ratio_of(c, t) * (1 + 16 * kRounding);
  const Moments* far = nullptr;
  double sum = 0;
  for (size_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i].exact) continue;
    double least = kInfinity;
    for (size_t j = 0; j < kEllipses; ++j) {
      double excess = ratio * near[i][j];
      if (!(excess < kEasyExcess)) {
        if (far == nullptr && level_of(t) <= kLastLevel) far = &far_at(c, level_of(t));
        if (far != nullptr) excess = std::min(excess, (*far)[i][j]);
      }
      if (!(excess < kMostExcess)) break;
      least = std::min(least, -std::log1p(-excess) * cells_[i].ellipses[j].missing);
    }
    sum += least;
  }
  return sum * (1 + 1e-12);
}

double SigmaRule::reach(double c) const {
  double largest = 0;
  const Moments& near = at_intercept(c).excess;
  for (size_t i = 0; i < cells_.size(); ++i)
    if (!cells_[i].exact) largest = std::max(largest, near[i].front());
  // κ is at most (1 + (t/c)²).
  const double by_ratio = largest > 0 ? c * std::sqrt(std::max(0.0, 0.999 * kMostExcess / largest - 1)) : kInfinity;
  for (int level = kLastLevel; level >= -2 * kLastLevel && end_of(level) > by_ratio; --level) {
    const Moments& far = far_at(c, level);
    double most = 0;
    for (size_t i = 0; i < cells_.size(); ++i)
      if (!cells_[i].exact) most = std::max(most, far[i].front());
    if (most < kMostExcess) return end_of(level);
  }
  return by_ratio;
}

double SigmaRule::cell_rest(const Cell& cell, std::span<PhaseMoment> moments, double c, double t, size_t index) const {
  const double angle = moments.front().pair().angle_of(index);
  double sum = cell.miss;
  double weights = 0;
  double scale = 0;
  double error = 0;
  for (PhaseMoment& moment : moments) {
    const double weight = moment.count();
    const double sigma = moment.pair().sigma();
    const double log_m = moment.pair().log_m();
    const double lift = angle * angle * sigma * sigma / 2;
    const double bound = moment.pair().log_bound(index, t);
    const double growth = std::expm1(log_m + moment.pair().log_m_error() + bound - lift);
    sum += weight * growth;
    weights += weight;
    scale += weight * log_m;
    error += weight * (1 + std::abs(growth)) * kRounding * (8 + 4 * (std::abs(log_m) + std::abs(bound) + 2 * lift));
  }
  // How far the rule may miss the sum of the integrals of G.
  double missing = kInfinity;
  const double lift = direction_ == Direction::kAdd ? std::pow(std::cos(angle / 2), -c) * (1 + 1e-9) : 1;
  const auto& rest = at_intercept(c).rest[static_cast<size_t>(&cell - cells_.data())];
  for (size_t i = 0; i < kEllipses; ++i) missing = std::min(missing, rest[i] * lift * cell.ellipses[i].missing);
  const double mean = std::max((sum + missing + error + kRounding * weights) / cell.executions, kLeastMean);
  const double lifted = angle * angle / 2 * cell.variances * (1 + 8 * kRounding);
  const double of_mean = cell.executions * std::log1p(mean);
  return of_mean + lifted - scale + 16 * kRounding * (std::abs(of_mean) + lifted + scale);
}

double SigmaRule::log_rest(std::span<PhaseMoment> moments, double c, double t) const {
  // |M| <= M(c), and the rule gives that sum too.
  double total = 0;
  double most = log_error(c, 0);
  for (PhaseMoment& moment : moments) most += 1.01 * moment.count() * moment.pair().log_m_error();
  for (size_t i = 0; i < cells_.size(); ++i) {
    const auto of_cell = moments.subspan(cells_[i].first, cells_[i].size);
    if (cells_[i].exact) {
      for (const PhaseMoment& moment : of_cell) total += moment.log_rest(t);
      continue;
    }
    size_t best = last_angle_[i];
    double least = cell_rest(cells_[i], of_cell, c, t, best);
    for (const bool up : {true, false})
      while (up ? best + 1 < LineMoment::kShifts : best > 0) {
        const size_t next = up ? best + 1 : best - 1;
        const double value = cell_rest(cells_[i], of_cell, c, t, next);
        if (!(value < least)) break;
        least = value;
        best = next;
      }
    last_angle_[i] = best;
    total += std::min(most, least);
  }
  return total;
}

}  // namespace ghostshard::accountant
