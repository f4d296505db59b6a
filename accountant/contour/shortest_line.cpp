// A line of large losses alone is short where one of all losses is long, and so is one whose alias is known.
#include <algorithm>

#include "accountant/contour/line_bound.h"
#include "accountant/gaussian/releases.h"

namespace ghostshard::accountant {
namespace {

constexpr int64_t kShortLine = 20'000'000;  // longer ones are tried without small losses first
constexpr size_t kMostCut = 8;              // phases
// Executions in which the unit is drawn, about: with more, one of all losses is the shorter one, or the alias is not
// known.
constexpr double kMostDrawn = 30;
constexpr double kHardlyDrawn = 0.05;

// Of pairs alone: closed forms and cuts know no coins.
bool may_be_cut(const LineProblem& problem) {
  if (problem.direction != Direction::kRemove || problem.phases.size() > kMostCut) return false;
  double drawn = 0;
  for (const ComposedRelease& phase : problem.phases) {
    if (phase.is_mixture() || phase.is_table()) return false;
    drawn += phase.count * phase.release.q;
  }
  return drawn < kMostDrawn;
}

}  // namespace

std::optional<DirectionBound> shortest_line_epsilon(LineProblem problem, Delta delta, int64_t budget, bool check,
                                                    bool (*enough)(const DirectionBound&)) {
  auto found = line_epsilon(problem, delta, may_be_cut(problem) ? std::min(budget, kShortLine) : budget, check);
  if (!may_be_cut(problem) || (found && enough(*found))) return found;
  // False if the answer stands. Two brackets that contradict each other are none, whatever a third one says.
  const auto goes_on = [&](int64_t most) {
    const auto other = line_epsilon(problem, delta, most, check);
    const bool both = found && other;
    found = inside_both(found, other);
    return found ? !enough(*found) : !both;
  };
  problem.large_alone = true;
  if (!goes_on(budget) || budget <= kShortLine) return found;
  problem.large_alone = false;
  problem.left_known = largest_loss_of_adding(problem.phases) < kHardlyDrawn;
  if (problem.left_known && !goes_on(std::min(budget, 3 * kShortLine))) return found;
  problem.left_known = false;
  (void)goes_on(budget);
  return found;
}

}  // namespace ghostshard::accountant
