// A noise schedule on a line: more releases than one takes one by one, those of one rate under a rule (sigma_rule.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accountant/contour/sigma_rule.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/direction_bound.h"

namespace ghostshard::accountant {

class Schedule {
 public:
  // In the order of composed_releases. No mixtures and no tables.
  explicit Schedule(const std::vector<ComposedRelease>& all);

  // What a line says of a few releases that are like them: no bound of theirs. If it says little, no line of all of
  // them will say more.
  std::optional<DirectionBound> sketched(Direction direction, Delta delta, int64_t budget) const;
  // For lines near epsilon, of all of them or of the rule's.
  std::optional<Saddle> saddle_at(Direction direction, double epsilon) const;
  // As line_bound.h's. Nothing if no rule is good enough. like: what sketched() found.
  std::optional<DirectionBound> epsilon(Direction direction, Delta delta, int64_t budget, bool check,
                                        const DirectionBound& like) const;
  std::optional<DirectionBound> delta(Direction direction, double epsilon, int64_t budget, bool check) const;
  // As in releases.h.
  bool adding_is_no_worse(double epsilon, double log_delta) const;

 private:
  // For a line of so many digits, as long as that of the sketch.
  std::optional<SigmaRule> rule_at(Direction direction, const Saddle& saddle, double log_delta, int64_t budget,
                                   double digits) const;

  const std::vector<ComposedRelease>& all_;
  std::vector<ComposedRelease> sketch_;  // a few that are like them: it tells where to look
};

}  // namespace ghostshard::accountant
