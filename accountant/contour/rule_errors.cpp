// How far the phases of a rule miss the releases (sigma_rule.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "accountant/contour/least_near.h"
#include "accountant/contour/sigma_rule.h"
#include "accountant/threads/in_parts.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr double kLevels = 2.25;  // from one t to the next that β is known at
constexpr int kLastLevel = 1;
constexpr double kNanoseconds = 20;    // of a node, where the rest of a line is bounded
constexpr double kLeastMean = -0.9;    // of a bound less 1: it keeps its digits
constexpr double kWidestAngles = 1.5;  // of both: below pi/2

}  // namespace

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

template <class LogBound>
double SigmaRule::cell_rest(const Cell& cell, std::span<PhaseMoment> moments, std::span<const double> rest, double c,
                            size_t index, const LogBound& log_bound) const {
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
    const double bound = log_bound(moment.pair());
    const double growth = std::expm1(log_m + moment.pair().log_m_error() + bound - lift);
    sum += weight * growth;
    weights += weight;
    scale += weight * log_m;
    error += weight * (1 + std::abs(growth)) * kRounding *
             (8 + 4 * (std::abs(log_m) + std::abs(bound) + 2 * lift) + static_cast<double>(moments.size()));
  }
  // How far the rule may miss the sum of the integrals of G.
  double missing = kInfinity;
  const double lift = direction_ == Direction::kAdd ? std::pow(std::cos(angle / 2), -c) * (1 + 1e-9) : 1;
  for (size_t i = 0; i < kEllipses; ++i) missing = std::min(missing, rest[i] * lift * cell.ellipses[i].missing);
  const double mean = std::max((sum + missing + error + kRounding * weights) / cell.executions, kLeastMean);
  const double lifted = angle * angle / 2 * cell.variances * (1 + 8 * kRounding);
  const double of_mean = cell.executions * std::log1p(mean);
  return of_mean + lifted - scale + 16 * kRounding * (std::abs(of_mean) + lifted + scale);
}

double SigmaRule::log_rest(std::span<PhaseMoment> moments, double c, double t) const {
  // |M| <= M(c), and the rule gives that sum too.
  double most = log_error(c, 0);
  double nodes = 0;
  for (PhaseMoment& moment : moments) {
    most += 1.01 * moment.count() * moment.pair().log_m_error();
    nodes += static_cast<double>(moment.nodes());
  }
  const Moments& rest = at_intercept(c).rest;
  std::vector<double> each(cells_.size(), 0.0);  // cells share nothing
  const auto of_cell = [&](size_t i) {
    const auto own = moments.subspan(cells_[i].first, cells_[i].size);
    if (!cells_[i].exact) {
      size_t& place = last_angle_[i];
      place = least_near(place, LineMoment::kShifts, [&](size_t index) {
                return cell_rest(cells_[i], own, rest[i], c, index,
                                 [&](const LineMoment& pair) { return pair.log_bound_about(index, t); });
              }).place;
      each[i] = std::min(most, cell_rest(cells_[i], own, rest[i], c, place,
                                         [&](const LineMoment& pair) { return pair.log_bound(place, t); }));
      return;
    }
    const PhaseMoment* before = nullptr;
    for (const PhaseMoment& moment : own) {
      if (before != nullptr) moment.look_near(*before);
      each[i] += moment.log_rest(t);
      before = &moment;
    }
  };
  in_parts(cells_.size(), 1, kNanoseconds * nodes / static_cast<double>(cells_.size()), [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) of_cell(i);
  });
  return std::accumulate(each.begin(), each.end(), 0.0);
}

}  // namespace ghostshard::accountant
