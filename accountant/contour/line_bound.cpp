#include "accountant/contour/line_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/least_double.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A line leaves out e^-32 of delta, or e^-20 if that would need too many nodes.
constexpr double kAllDigits = 32;
constexpr double kFewDigits = 20;
constexpr size_t kLongLine = 300;  // checked on one with few digits

std::string describe(const ContourLine& line, bool checked) {
  std::ostringstream text;
  text << "line at " << line.intercept() << ", period " << line.period() << ", " << line.nodes() << " nodes"
       << (checked ? ", checked on a second line" : "");
  return text.str();
}

bool overlap(const Bracket& a, const Bracket& b) { return a.lower <= b.upper && b.lower <= a.upper; }

// The proof covers the arithmetic; that the proof is right shows here, on a line elsewhere with another mesh. Where a
// line is long, to nine digits of delta: half the nodes.
std::optional<bool> agrees_elsewhere(const LineProblem& problem, double epsilon, const ContourLine& line,
                                     int64_t budget) {
  const ContourLine::Value here = line.at(epsilon);
  const auto other =
      ContourLine::make(problem.direction, problem.phases, line.intercept(), epsilon, std::log(here.delta), 0.83,
                        budget, line.nodes() > kLongLine ? kFewDigits : kAllDigits, problem.rule);
  if (!other) return std::nullopt;
  return overlap(here.bracket, other->at(epsilon).bracket);
}

}  // namespace

std::optional<DirectionBound> line_epsilon(const LineProblem& problem, Delta delta, int64_t budget, bool check) {
  const auto& [direction, phases, rule, known, few_digits] = problem;
  const double log_delta = std::log(delta.value());
  const auto saddle = known ? known : saddle_of_delta(direction, phases, log_delta);
  if (!saddle) return std::nullopt;
  double c = saddle->c;
  double epsilon = saddle->epsilon;
  std::optional<ContourLine> line;
  bool settled = false;
  for (int attempt = 0; attempt < 8 && !settled; ++attempt) {
    line.reset();
    if (!few_digits) line = ContourLine::make(direction, phases, c, epsilon, log_delta, 0, budget, kAllDigits, rule);
    if (!line) line = ContourLine::make(direction, phases, c, epsilon, log_delta, 0, budget, kFewDigits, rule);
    if (!line) return std::nullopt;
    // Newton on log delta, each step at most a few units of 1/c: there the line is good. Where delta is lost in the
    // rounding, epsilon is far too large.
    const double start = epsilon;
    for (int i = 0; i < 25 && !settled; ++i) {
      const ContourLine::Value value = line->at(epsilon);
      double move = -3 / c;
      if (value.bracket.lower > 0 && value.derivative < 0)
        move = (std::log(value.delta) - log_delta) * value.delta / -value.derivative;
      const double next = std::max(0.0, epsilon + std::clamp(move, -3 / c, 3 / c));
      settled = std::abs(next - epsilon) <= 4e-16 * epsilon || (next == 0 && epsilon == 0) ||
                (i > 8 && std::abs(next - epsilon) * c < 1e-13);
      epsilon = next;
      if (std::abs(epsilon - start) * c > 4) break;
    }
    if (std::abs(epsilon - start) * c <= 4) break;
    settled = false;
    if (const auto moved = saddle_of_epsilon(direction, phases, epsilon)) c = *moved;
  }
  const ContourLine::Value value = line->at(epsilon);
  if (check && agrees_elsewhere(problem, epsilon, *line, budget) == false) return std::nullopt;
  DirectionBound result{0, epsilon, kInfinity, describe(*line, check)};
  const double width = (value.bracket.upper - value.bracket.lower) / -value.derivative;
  if (!(width >= 0)) return std::nullopt;
  double margin = width + 2e-16 * epsilon + 1e-300;
  for (int i = 0; i < 30 && !(result.upper < kInfinity); ++i, margin *= 2)
    if (line->at(epsilon + margin).bracket.upper <= delta.value()) result.upper = epsilon + margin;
  if (line->at(epsilon).bracket.upper <= delta.value()) result.upper = epsilon;
  margin = width + 2e-16 * epsilon + 1e-300;
  for (int i = 0; i < 30 && margin < epsilon; ++i, margin *= 2)
    if (line->at(epsilon - margin).bracket.lower >= delta.value()) {
      result.lower = epsilon - margin;
      break;
    }
  if (!(result.upper < kInfinity)) return std::nullopt;
  return result;
}

std::optional<DirectionBound> line_delta(const LineProblem& problem, double epsilon, int64_t budget, bool check) {
  const auto& [direction, phases, rule, known, few_digits] = problem;
  const auto c = known ? std::optional(known->c) : saddle_of_epsilon(direction, phases, epsilon);
  if (!c) return std::nullopt;
  const RealMoment moment = composed_moment(direction, phases, *c);
  const double width = 6.283 * (moment.variance + 1 / (*c * *c) + 1 / ((1 + *c) * (1 + *c)));
  double log_delta = moment.log_m - *c * epsilon - std::log(*c) - std::log1p(*c) - 0.5 * std::log(width);
  // The saddle-point approximation may be far off near a phase transition: then the line gives the better guess.
  for (int attempt = 0; attempt < 4; ++attempt) {
    std::optional<ContourLine> line;
    if (!few_digits)
      line = ContourLine::make(direction, phases, *c, epsilon, std::min(log_delta, 0.0), 0, budget, kAllDigits, rule);
    if (!line)
      line = ContourLine::make(direction, phases, *c, epsilon, std::min(log_delta, 0.0), 0, budget, kFewDigits, rule);
    if (!line) return std::nullopt;
    const ContourLine::Value value = line->at(epsilon);
    if (!(value.bracket.upper > 0)) return std::nullopt;
    const double found = std::log(std::max({value.delta, value.bracket.upper / 8, kLeast}));
    if (found < log_delta - 2 && attempt < 3) {
      log_delta = found;
      continue;
    }
    if (check && agrees_elsewhere(problem, epsilon, *line, budget) == false) return std::nullopt;
    return DirectionBound{value.bracket.lower, std::clamp(value.delta, value.bracket.lower, value.bracket.upper),
                          value.bracket.upper, describe(*line, check)};
  }
  return std::nullopt;
}

}  // namespace ghostshard::accountant
