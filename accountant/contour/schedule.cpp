#include "accountant/contour/schedule.h"

#include <cmath>
#include <map>
#include <utility>

#include "accountant/contour/line_bound.h"
#include "accountant/contour/sigma_rule.h"
#include "accountant/gaussian/releases.h"

namespace ghostshard::accountant {
namespace {

constexpr size_t kSketched = 12;
constexpr double kNegligibleAt = 9;  // standard deviations of a line: e^-40

std::vector<ComposedRelease> sketch_of(const std::vector<ComposedRelease>& all, double width) {
  struct Sum {
    double count = 0, q = 0, v = 0;
  };
  std::map<std::pair<double, double>, Sum> cells;
  for (const auto& phase : all) {
    const auto& [q, sigma] = phase.release;
    Sum& sum = cells[{std::floor(std::log(q) / width), std::floor(std::log(sigma) / width)}];
    sum.count += phase.count;
    sum.q += phase.count * q;
    sum.v += phase.count / (sigma * sigma);
  }
  std::vector<ComposedRelease> sketch;
  for (const auto& [place, sum] : cells)
    sketch.push_back({{std::min(1.0, sum.q / sum.count), std::sqrt(sum.count / sum.v)}, sum.count});
  return sketch;
}

}  // namespace

Schedule::Schedule(const std::vector<ComposedRelease>& all) : all_(all), sketch_(sketch_of(all, 0.1)) {
  for (double width = 0.2; sketch_.size() > kSketched; width *= 1.5) sketch_ = sketch_of(all, width);
}

double Schedule::scale(Direction direction, double c) const {
  return kNegligibleAt / std::sqrt(composed_moment(direction, sketch_, c).variance);
}

std::optional<DirectionBound> Schedule::epsilon(Direction direction, Delta delta, int64_t budget, bool check) const {
  const auto saddle = saddle_of_delta(direction, sketch_, std::log(delta.value()));
  if (!saddle) return std::nullopt;
  const auto rule = SigmaRule::make(direction, all_, saddle->c, scale(direction, saddle->c));
  if (!rule) return std::nullopt;
  return line_epsilon({direction, rule->phases(), &*rule, saddle}, delta, budget, check);
}

std::optional<DirectionBound> Schedule::delta(Direction direction, double epsilon, int64_t budget, bool check) const {
  const auto c = saddle_of_epsilon(direction, sketch_, epsilon);
  if (!c) return std::nullopt;
  const auto rule = SigmaRule::make(direction, all_, *c, scale(direction, *c));
  if (!rule) return std::nullopt;
  return line_delta({direction, rule->phases(), &*rule, Saddle{*c, epsilon}}, epsilon, budget, check);
}

bool Schedule::adding_is_no_worse(double epsilon, double log_delta) const {
  if (epsilon >= largest_loss_of_adding(all_)) return true;
  const auto c = saddle_of_epsilon(Direction::kAdd, sketch_, epsilon);
  if (!c) return false;
  const auto rule = SigmaRule::make(Direction::kAdd, all_, *c, 0.3 * scale(Direction::kAdd, *c));
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
