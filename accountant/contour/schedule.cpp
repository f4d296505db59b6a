#include "accountant/contour/schedule.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "accountant/contour/contour_line.h"
#include "accountant/contour/gauss_rule.h"
#include "accountant/contour/line_bound.h"
#include "accountant/gaussian/releases.h"

namespace ghostshard::accountant {
namespace {

constexpr size_t kSketched = 16;
constexpr size_t kOfCell = 6;  // of a cell of rates: under a Gauss rule over log 1/sigma²

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

}  // namespace

Schedule::Schedule(const std::vector<ComposedRelease>& all) : all_(all), sketch_(sketch_of(all, 0.1, kOfCell)) {
  for (double width = 0.2; sketch_.size() > kSketched; width *= 1.5) sketch_ = sketch_of(all, width, kOfCell / 2);
}

std::optional<SigmaRule> Schedule::rule_at(Direction direction, const Saddle& saddle, double log_delta,
                                           int64_t budget) const {
  const auto line = ContourLine::extent(direction, sketch_, saddle.c, saddle.epsilon, log_delta, budget);
  if (!line) return std::nullopt;
  return SigmaRule::make(direction, all_, line->intercept, line->end);
}

std::optional<DirectionBound> Schedule::sketched(Direction direction, Delta delta, int64_t budget) const {
  return line_epsilon({.direction = direction, .phases = sketch_, .few_digits = true}, delta, budget, false);
}

std::optional<DirectionBound> Schedule::epsilon(Direction direction, Delta delta, int64_t budget, bool check,
                                                const DirectionBound& like) const {
  const double log_delta = std::log(delta.value());
  // Rare large losses make the saddle point's approximation worthless; the line of the sketch does not suffer.
  const auto c = saddle_of_epsilon(direction, sketch_, like.estimate);
  if (!c) return std::nullopt;
  const std::optional<Saddle> saddle = Saddle{*c, like.estimate};
  const auto rule = rule_at(direction, *saddle, log_delta, budget);
  if (!rule) return std::nullopt;
  return line_epsilon({.direction = direction, .phases = rule->phases(), .rule = &*rule, .saddle = saddle}, delta,
                      budget, check);
}

std::optional<DirectionBound> Schedule::delta(Direction direction, double epsilon, int64_t budget, bool check) const {
  const auto c = saddle_of_epsilon(direction, sketch_, epsilon);
  if (!c) return std::nullopt;
  const Saddle saddle{*c, epsilon};
  const double log_delta = std::min(0.0, chernoff_log_delta(direction, sketch_, *c, epsilon));
  const auto rule = rule_at(direction, saddle, log_delta, budget);
  if (!rule) return std::nullopt;
  return line_delta({.direction = direction, .phases = rule->phases(), .rule = &*rule, .saddle = saddle}, epsilon,
                    budget, check);
}

bool Schedule::adding_is_no_worse(double epsilon, double log_delta) const {
  if (epsilon >= largest_loss_of_adding(all_)) return true;
  const auto c = saddle_of_epsilon(Direction::kAdd, sketch_, epsilon);
  if (!c) return false;
  const auto rule = SigmaRule::make(Direction::kAdd, all_, *c, *c);  // on the axis alone
  if (!rule) return false;
  // Chernoff's bound is least a little above the saddle point.
  for (const double share : {1.0, 1.1, 1.25}) {
    const RealMoment moment = composed_moment(Direction::kAdd, rule->phases(), share * *c);
    const double k = moment.log_m + moment.error + rule->log_error(share * *c, 0);
    if (log_chernoff(share * *c, k, epsilon) <= log_delta) return true;
  }
  return false;
}

}  // namespace ghostshard::accountant
