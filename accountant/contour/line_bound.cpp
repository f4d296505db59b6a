#include "accountant/contour/line_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/least_double.h"
#include "accountant/gaussian/releases.h"
#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A line leaves out e^-32 of delta. If that would need many nodes, as much less as a bracket of kNarrow allows, or
// one of less if epsilon is small; of delta, e^-20.
constexpr double kAllDigits = 32;
constexpr double kFewDigits = 20;
constexpr double kRoughDigits = 6;  // for a look at where epsilon lies
constexpr double kSketchDigits = 10;
constexpr double kRareRules = 3;       // epsilon·c: below, the saddle point's approximation is worth little
constexpr size_t kShortRough = 2'000;  // nodes of a line of few digits, after which one of all may be cheap
constexpr double kBesideDigits = 2;    // small losses are less than what a line leaves out
constexpr int64_t kLonger = 5;         // a line with all the digits that are wanted, than one with few, at least
constexpr double kNarrow = 4e-9;
constexpr double kNarrowOfMany = 1e-7;
constexpr int64_t kCheapLook = 300'000;  // evaluations
constexpr int64_t kCheap = 20'000'000;
constexpr size_t kFewPhases = 4;  // the moments of more cost so much that a line is not begun to see what it costs
constexpr double kCheckDigits = 10;
constexpr size_t kLongLine = 300;  // checked on one with few digits
constexpr int kQuickSteps = 5;     // that Newton's method needs if rounding does not stop it
constexpr double kWithin = 0.02;   // of a bracket: Newton's method is near enough

std::string describe(const ContourLine& line, bool checked) {
  std::ostringstream text;
  text << "line at " << line.intercept() << ", period " << line.period() << ", " << line.nodes() << " nodes"
       << (checked ? ", checked on a second line" : "");
  return text.str();
}

bool overlap(const Bracket& a, const Bracket& b) { return a.lower <= b.upper && b.lower <= a.upper; }

double below_zero_of(const LineProblem& problem) {
  return problem.left_known ? largest_loss_of_adding(problem.phases) : kInfinity;
}

// The proof covers the arithmetic; that the proof is right shows here, on a line elsewhere with another mesh. Where a
// line is long, to few digits of delta: half the nodes.
std::optional<bool> agrees_elsewhere(const LineProblem& problem, double epsilon, const ContourLine& line,
                                     int64_t budget, double few, const LossCut* cut) {
  const ContourLine::Value here = line.at(epsilon);
  const bool is_long = line.nodes() > kLongLine || problem.phases.size() > kFewPhases;
  const auto other =
      ContourLine::make(problem.direction, problem.phases, line.intercept(), epsilon, std::log(here.delta), 0.83,
                        budget, is_long ? few : kAllDigits, problem.rule, cut, below_zero_of(problem));
  if (!other) return std::nullopt;
  return overlap(here.bracket, other->at(epsilon).bracket);
}

// Newton's method on log delta, each step at most a few units of 1/c: there the line is good. Where delta is lost in
// the rounding, epsilon is far too large. Between two epsilons on either side, the middle if a step leads beyond them.
// True if it ends on this line: a step within the bracket's width leads nowhere.
bool newton(const ContourLine& line, double c, double log_delta, double& epsilon) {
  const double start = epsilon;
  double left = -kInfinity;
  double right = kInfinity;
  for (int i = 0; i < 40; ++i) {
    const ContourLine::Value value = line.at(epsilon);
    double move = -3 / c;
    double unknown = 0;
    const bool known = value.bracket.lower > 0 && value.derivative < 0;
    if (known) {
      move = (std::log(value.delta) - log_delta) * value.delta / -value.derivative;
      unknown = (value.bracket.upper - value.bracket.lower) / -value.derivative;
    }
    (move > 0 ? left : right) = epsilon;
    double next = std::max(0.0, epsilon + std::clamp(move, -3 / c, 3 / c));
    if (left < right && right < kInfinity && left > -kInfinity && !(next > left && next < right))
      next = left + (right - left) / 2;
    const double moved = std::abs(next - epsilon);
    epsilon = next;
    if ((known && moved <= std::max(4e-16 * epsilon, i < kQuickSteps ? 0.0 : kWithin * unknown)) || moved == 0 ||
        (i > 8 && moved * c < 1e-13))
      return true;
    if (std::abs(epsilon - start) * c > 4) return false;
  }
  return false;
}

// Where one large loss would decide, of all executions together.
double epsilon_of_one(std::span<const ComposedRelease> phases, double log_delta) {
  double low = 0;
  double high = 1;
  const auto delta_at = [&](double epsilon) {
    double sum = 0;
    for (const ComposedRelease& phase : phases)
      sum += phase.count * single_release_delta(Direction::kRemove, phase.release, epsilon).upper;
    return sum;
  };
  const double delta = std::exp(log_delta);
  while (high < 1e9 && delta_at(high) > delta) high *= 4;
  for (int i = 0; i < 40; ++i) {
    const double middle = low > 0 ? std::sqrt(low * high) : high / 16;
    (delta_at(middle) > delta ? low : high) = middle;
    if (high < 1e-9 || high < 1.001 * low) break;
  }
  return high;
}

}  // namespace

double line_digits(double c, double epsilon, size_t phases) {
  const double narrow = (phases > kFewPhases ? kNarrowOfMany : kNarrow) * std::clamp(10 * epsilon, 1e-1, 1.0);
  return std::clamp(-std::log(narrow * c), 12.0, 26.0);
}

std::optional<DirectionBound> line_epsilon(const LineProblem& problem, Delta delta, int64_t budget, bool check) {
  const auto& [direction, phases, rule, known, few_digits, large_alone, left_known] = problem;
  const double log_delta = std::log(delta.value());
  const auto saddle = known ? known : saddle_of_delta(direction, phases, log_delta);
  if (!saddle) return std::nullopt;
  double c = saddle->c;
  double epsilon = saddle->epsilon;
  if (large_alone && !known) {
    const double of_one = epsilon_of_one(phases, log_delta);
    const auto there = saddle_of_epsilon(direction, phases, of_one);
    if (there && of_one * *there < kRareRules) {
      epsilon = of_one;
      c = *there;
    }
  }
  std::optional<ContourLine> line;
  std::optional<LossCut> cut;
  const double below_zero = below_zero_of(problem);
  // Where rare large losses rule delta, the saddle point's epsilon is far off. Then lines of a few digits lead to a
  // better one, unless a line is cheap anyway.
  bool located = known.has_value();
  bool settled = false;
  for (int attempt = 0; attempt < 12 && !settled; ++attempt) {
    const bool is_short = !large_alone || (line && line->nodes() < kShortRough);
    line.reset();
    const auto line_of = [&](double digits, int64_t most) {
      if (problem.large_alone) {  // clang 14 captures no bindings
        cut = cut_losses(problem.phases, epsilon, log_delta, digits + kBesideDigits);
        if (!cut) return;
      }
      line = ContourLine::make(problem.direction, problem.phases, c, epsilon, log_delta, 0, std::min(budget, most),
                               digits, problem.rule, cut ? &*cut : nullptr, below_zero);
    };
    if (!few_digits && is_short && phases.size() <= kFewPhases) line_of(kAllDigits, located ? kCheap : kCheapLook);
    const bool rough = !line && !located;
    if (rough)
      line_of(kRoughDigits, large_alone ? budget : budget / kLonger);
    else if (!line)
      line_of(few_digits ? kSketchDigits : line_digits(c, epsilon, phases.size()), budget);
    if (!line) return std::nullopt;
    const double start = epsilon;
    settled = newton(*line, c, log_delta, epsilon);
    const bool near = std::abs(epsilon - start) * c <= 4;
    if (near && !rough) break;
    located = located || near;
    settled = false;
    if (const auto moved = saddle_of_epsilon(direction, phases, epsilon)) c = *moved;
  }
  const ContourLine::Value value = line->at(epsilon);
  if (check && agrees_elsewhere(problem, epsilon, *line, budget, kCheckDigits, cut ? &*cut : nullptr) == false)
    return std::nullopt;
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
  const auto& [direction, phases, rule, known, few_digits, large_alone, left_known] = problem;
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
    if (check && agrees_elsewhere(problem, epsilon, *line, budget, kFewDigits, nullptr) == false) return std::nullopt;
    return DirectionBound{value.bracket.lower, std::clamp(value.delta, value.bracket.lower, value.bracket.upper),
                          value.bracket.upper, describe(*line, check)};
  }
  return std::nullopt;
}

}  // namespace ghostshard::accountant
