#include "accountant/contour/schedule.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "accountant/contour/contour_line.h"
#include "accountant/contour/gauss_rule.h"
#include "accountant/contour/line_bound.h"
#include "accountant/contour/line_moments.h"
#include "accountant/gaussian/releases.h"

namespace ghostshard::accountant {
namespace {

constexpr size_t kSketched = 16;
constexpr double kAllDigits = 32;
constexpr double kNoMatter = 6;  // an integrand that exceeds the integral by less than this power of e
constexpr double kFinest = 1e6;
constexpr double kNearlyOne = 1.01;   // sigma, of those that are put together for one bound
constexpr size_t kMostAtOnce = 1000;  // moments on the axis
constexpr double kHopeless = 1;       // by which the sketch's logarithm of delta is too large
constexpr double kBeyondBudget = 2;   // a line, by its sketch
constexpr size_t kOfCell = 6;         // of a cell of rates: under a Gauss rule over log 1/sigma²

std::vector<ComposedRelease> sketch_of(const std::vector<ComposedRelease>& all, double width, size_t of_cell) {
  std::map<double, std::vector<ComposedRelease>> cells;
  for (const auto& phase : all) cells[std::floor(std::log(phase.release.q) / width)].push_back(phase);
  std::vector<ComposedRelease> sketch;
  for (const auto& [place, phases] : cells) {
    const auto [least, most] =
        std::minmax_element(phases.begin(), phases.end(),
                            [](const auto& one, const auto& other) { return one.release.sigma < other.release.sigma; });
    const double top = std::log(most->release.sigma);
    const double half = std::max((top - std::log(least->release.sigma)) / 2, 1e-9);
    std::vector<Mass> measure;
    double squares = 0;
    double executions = 0;
    for (const auto& [release, count, weight, alternatives, nothing, table] : phases) {
      measure.push_back({(std::log(release.sigma) - top) / half + 1, count});
      squares += count * release.q * release.q;
      executions += count;
    }
    const double q = std::min(1.0, std::sqrt(squares / executions));
    for (const Mass& mass : gauss_rule(measure, of_cell))
      sketch.push_back({{q, std::exp(top + half * (static_cast<double>(mass.x) - 1))}, mass.weight});
  }
  return sketch;
}

// Neighbours of one rate and nearly one sigma put together under the least of their sigmas, which is less private
// (releases.h). Their counts add up, rounded up.
std::vector<ComposedRelease> under_least_sigma(const std::vector<ComposedRelease>& all) {
  std::vector<ComposedRelease> few;
  for (const ComposedRelease& phase : all)
    if (!few.empty() && few.back().release.q == phase.release.q && few.back().release.sigma <= phase.release.sigma &&
        phase.release.sigma <= kNearlyOne * few.back().release.sigma)
      few.back().count = (few.back().count + phase.count) * (1 + 1e-15);
    else
      few.push_back(phase);
  return few;
}

}  // namespace

Schedule::Schedule(const std::vector<ComposedRelease>& all) : all_(all), sketch_(sketch_of(all, 0.1, kOfCell)) {
  for (double width = 0.2; sketch_.size() > kSketched; width *= 1.5) sketch_ = sketch_of(all, width, kOfCell / 2);
}

std::optional<SigmaRule> Schedule::rule_at(Direction direction, const Saddle& saddle, double log_delta, int64_t budget,
                                           double digits) const {
  const auto line = ContourLine::extent(direction, sketch_, saddle.c, saddle.epsilon, log_delta, budget, digits);
  if (!line) return std::nullopt;
  // What a rule misses is relative to the integrand.
  const double finer = std::clamp(std::exp(line->log_excess - kNoMatter), 1.0, kFinest);
  auto rule = SigmaRule::make(direction, all_, line->intercept, line->end, finer);
  if (!rule) return std::nullopt;
  // Its line is about as long as the sketch's. A hopeless one is not begun.
  const double evaluations =
      static_cast<double>(mesh_nodes(direction, rule->phases(), line->intercept)) * static_cast<double>(line->nodes);
  return evaluations <= kBeyondBudget * static_cast<double>(budget) ? rule : std::nullopt;
}

std::optional<DirectionBound> Schedule::sketched(Direction direction, Delta delta, int64_t budget) const {
  return line_epsilon({.direction = direction, .phases = sketch_, .few_digits = true}, delta, budget, false);
}

std::optional<Saddle> Schedule::saddle_at(Direction direction, double epsilon) const {
  const auto c = saddle_of_epsilon(direction, sketch_, epsilon);
  if (!c) return std::nullopt;
  return Saddle{*c, epsilon};
}

std::optional<DirectionBound> Schedule::epsilon(Direction direction, Delta delta, int64_t budget, bool check,
                                                const DirectionBound& like) const {
  const double log_delta = std::log(delta.value());
  // Rare large losses make the saddle point's approximation worthless; the line of the sketch does not suffer.
  const auto saddle = saddle_at(direction, like.estimate);
  if (!saddle) return std::nullopt;
  const double digits = line_digits(saddle->c, saddle->epsilon, all_.size());
  for (const double more : {1.0, 8.0}) {  // if the sketch ends too early
    const auto rule = rule_at(direction, *saddle, log_delta, budget, digits + more);
    if (!rule) return std::nullopt;
    auto found = line_epsilon({.direction = direction, .phases = rule->phases(), .rule = &*rule, .saddle = saddle},
                              delta, budget, check);
    if (found) return found;
  }
  return std::nullopt;
}

std::optional<DirectionBound> Schedule::delta(Direction direction, double epsilon, int64_t budget, bool check) const {
  const auto c = saddle_of_epsilon(direction, sketch_, epsilon);
  if (!c) return std::nullopt;
  const Saddle saddle{*c, epsilon};
  const double log_delta = std::min(0.0, chernoff_log_delta(direction, sketch_, *c, epsilon));
  const auto rule = rule_at(direction, saddle, log_delta, budget, kAllDigits);
  if (!rule) return std::nullopt;
  return line_delta({.direction = direction, .phases = rule->phases(), .rule = &*rule, .saddle = saddle}, epsilon,
                    budget, check);
}

bool Schedule::adding_is_no_worse(double epsilon, double log_delta) const {
  if (epsilon >= largest_loss_of_adding(all_)) return true;
  const auto c = saddle_of_epsilon(Direction::kAdd, sketch_, epsilon);
  if (!c) return false;
  // Chernoff's bound is least a little above the saddle point: where, the sketch tells.
  double best = 0;
  double least = kHopeless;
  for (const double share : {1.0, 1.1, 1.25}) {
    const double found = chernoff_log_delta(Direction::kAdd, sketch_, share * *c, epsilon) - log_delta;
    if (found < least) {
      least = found;
      best = share * *c;
    }
  }
  if (!(best > 0)) return false;
  const std::vector<ComposedRelease> few = under_least_sigma(all_);
  if (few.size() <= kMostAtOnce) return chernoff_log_delta(Direction::kAdd, few, best, epsilon) <= log_delta;
  const auto rule = SigmaRule::make(Direction::kAdd, all_, best, best);  // on the axis alone
  if (!rule) return false;
  const RealMoment moment = composed_moment(Direction::kAdd, rule->phases(), best);
  return log_chernoff(best, moment.log_m + moment.error + rule->log_error(best, 0), epsilon) <= log_delta;
}

}  // namespace ghostshard::accountant
