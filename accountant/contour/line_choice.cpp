// Where to put the line (contour_line.h): nothing of it is part of a proof but K beyond the intercept, rounded up.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/few_losses.h"
#include "accountant/threads/in_parts.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kCancelling = 5;
constexpr double kMostCancelling = 14;
constexpr double kMostUnderRule = 9;
// Intercepts that a line is chosen from, as shares of the saddle point; with more phases than these each costs more
// than a line that is a few percent longer.
constexpr size_t kFewPhases = 4;
constexpr std::array kShares = {0.3, 0.4,  0.5,  0.6,  0.7,  0.78, 0.84, 0.89, 0.93, 0.96, 0.98, 0.99,
                                1.0, 1.01, 1.03, 1.07, 1.15, 1.3,  1.5,  1.8,  2.2,  3.0,  4.0,  5.5};
constexpr std::array kFewShares = {0.5, 0.7, 0.84, 0.93, 1.0, 1.07, 1.2, 1.5, 2.2, 4.0};
constexpr std::array kFarShares = {8.0, 12.0, 18.0, 27.0, 40.0};
constexpr double kMostTold = 200;      // aliases to the right
constexpr double kLeftOverDelta = 12;  // the logarithm of the known alias over delta
constexpr size_t kAtOnce = 5;          // intercepts; beyond some, none is asked for
constexpr double kNanoseconds = 5e3;   // of a moment

// At each of these intercepts, one phase after the other: the mesh of its outcomes serves all of them (real_moment.h).
std::vector<RealMoment> composed_moments(Direction direction, std::span<const ComposedRelease> phases,
                                         std::span<const double> intercepts) {
  std::vector<std::vector<RealMoment>> each(intercepts.size(), std::vector<RealMoment>(phases.size()));
  in_parts(phases.size(), 1, kNanoseconds * static_cast<double>(intercepts.size()), [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i)
      for (size_t j = 0; j < intercepts.size(); ++j) each[j][i] = moment_of_phase(direction, phases[i], intercepts[j]);
  });
  std::vector<RealMoment> found;
  for (const std::vector<RealMoment>& of_phases : each) found.push_back(composed_of(phases, of_phases));
  return found;
}

}  // namespace

std::optional<LineChoice> choose_line(Direction direction, std::span<const ComposedRelease> phases, double saddle,
                                      double epsilon, double log_delta, double intercept, double wanted_digits,
                                      const SigmaRule* rule, double left_known_from) {
  const bool left_known = left_known_from < kInfinity;
  // K on a geometric grid around the saddle point gives the cost of each intercept.
  std::vector<std::pair<double, double>> grid;  // (c, K(c))
  std::vector<double> variances;
  const std::span<const double> shares =
      phases.size() > kFewPhases ? std::span<const double>(kFewShares) : std::span<const double>(kShares);
  std::vector<double> asked;
  for (const double share : shares) asked.push_back(saddle * share);
  for (const double share : kFarShares)
    if (left_known) asked.push_back(saddle * share);
  std::erase_if(asked, [&](double c) { return c <= saddle * intercept; });  // only those beyond it
  const size_t at_once = phases.size() > kFewPhases ? kAtOnce : 1;
  bool useful = true;
  for (size_t first = 0; first < asked.size() && useful; first += at_once) {
    const auto some = std::span(asked).subspan(first, std::min(at_once, asked.size() - first));
    const std::vector<RealMoment> moments = composed_moments(direction, phases, some);
    for (size_t i = 0; i < some.size() && useful; ++i) {
      const double c = some[i];
      const double k = moments[i].log_m + moments[i].error + (rule != nullptr ? rule->log_error(c, 0) : 0);
      grid.emplace_back(c, k);
      variances.push_back(moments[i].variance);
      useful = !(c > saddle) || k - c * epsilon <= 60 - 3 * log_delta;  // or nothing is from here on
    }
  }
  const auto period_of = [&](double c) {
    double right = kInfinity;
    for (const auto& [other, k] : grid)
      if (other > c)
        right = std::min(right, (k - other * epsilon + log_kappa(other) - log_delta + wanted_digits) / (other - c));
    double left = (wanted_digits - log_delta) / c;
    // What is known is taken off, and costs digits.
    if (left_known) left = std::min(left, std::max({left_known_from, (-kLeftOverDelta - log_delta) / c, 0.1 / c}));
    return std::max({right, left, 1e-300});
  };
  // Where few losses decide, the first aliases to the right have closed forms, and a period may be a small part of what
  // Chernoff needs.
  const auto shortest_of = [&](double c) {
    const double by_chernoff = period_of(c);
    if (!left_known || !(by_chernoff < 1e300)) return by_chernoff;
    const std::vector<ComposedRelease> all(phases.begin(), phases.end());
    const double least =
        std::max({left_known_from, (-kLeftOverDelta - log_delta) / c, 0.1 / c, by_chernoff / kMostTold});
    const auto enough = [&](double period) {
      return std::log(few_losses_delta(all, epsilon + period)) + c * period <= log_delta - wanted_digits;
    };
    // e^(c·period) outgrows the closed forms somewhere: between its ends none is larger.
    if (!(least < by_chernoff) || !enough(1.1 * by_chernoff)) return by_chernoff;
    if (enough(least)) return least;
    double low = std::log(least);
    double high = std::log(by_chernoff);
    for (int i = 0; i < 10; ++i) {
      const double middle = (low + high) / 2;
      (enough(std::exp(middle)) ? high : low) = middle;
    }
    return std::exp(high) * 1.02;
  };
  LineChoice choice;
  if (intercept > 0) {
    choice.c = saddle * intercept;
  } else {
    // The shortest period among the intercepts where the integrand does not exceed the integral by much more than it
    // must. Long double, if it is needed, costs some times as much.
    const auto log_excess = [&](double c, double k) {
      return k - c * epsilon - std::log(c) - std::log1p(c) - log_delta;
    };
    double smallest = kInfinity;
    for (const auto& [c, k] : grid) smallest = std::min(smallest, log_excess(c, k));
    double least = kInfinity;
    for (const auto& [c, k] : grid) {
      const double excess = log_excess(c, k);
      // What a rule of rates misses is relative to the integrand, and no arithmetic helps.
      const bool of_rates = rule != nullptr && rule->has_rates();
      if (!(excess <= std::max(smallest + 3, of_rates ? kMostUnderRule : kMostCancelling))) continue;
      const double cost = shortest_of(c) * (excess > kCancelling ? 6 : 1);
      if (cost < least) {
        least = cost;
        choice.c = c;
      }
    }
    if (!(choice.c > 0)) return std::nullopt;
  }
  choice.period = shortest_of(choice.c);
  if (const double by_chernoff = period_of(choice.c); choice.period < by_chernoff)
    choice.told = static_cast<int64_t>(std::ceil(by_chernoff / choice.period));
  if (!(choice.period < 1e300)) return std::nullopt;
  for (size_t i = grid.size(); i-- > 0;)
    if (grid[i].first > choice.c) {
      choice.beyond.push_back(grid[i]);
    } else if (choice.variance == 0) {
      choice.variance = variances[i];
      choice.k = grid[i].second;
    }
  return choice;
}

}  // namespace ghostshard::accountant
