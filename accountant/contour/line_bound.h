// Epsilon and delta by integration along a line: Newton's method on nodes that do not depend on epsilon.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accountant/contour/sigma_rule.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/direction_bound.h"

namespace ghostshard::accountant {

struct LineProblem {
  Direction direction;
  const std::vector<ComposedRelease>& phases;
  const SigmaRule* rule = nullptr;  // of which these are the phases
  std::optional<Saddle> saddle{};   // if it is known
  bool few_digits = false;          // nine of delta are enough
  bool large_alone = false;         // a line of large losses (large_losses.h); a unit is removed
  bool left_known = false;          // the alias to the left is taken off (contour_line.h); a unit is removed
};

// Nothing if a line would need more than `budget` evaluations of an integrand. check: on a second line with another
// mesh; nothing if the two brackets do not meet.
std::optional<DirectionBound> line_epsilon(const LineProblem& problem, Delta delta, int64_t budget, bool check);
std::optional<DirectionBound> line_delta(const LineProblem& problem, double epsilon, int64_t budget, bool check);

// The same of a problem without a rule, by the first of several sorts of lines that is short and whose bound is
// `enough`: of all losses, of large ones alone, of all with a known alias.
std::optional<DirectionBound> shortest_line_epsilon(LineProblem problem, Delta delta, int64_t budget, bool check,
                                                    bool (*enough)(const DirectionBound&));

// How many powers of e of delta a line leaves out that is no cheap one.
double line_digits(double c, double epsilon, size_t phases);

}  // namespace ghostshard::accountant
