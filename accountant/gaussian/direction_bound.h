// The bound of one direction alone, and how the bounds of both become an answer.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

struct DirectionBound {
  double lower = 0;
  double estimate = 0;
  double upper = std::numeric_limits<double>::infinity();
  std::string detail;
};

// Two proven brackets of the same number: the narrower one, cut by the other. Nothing if they contradict each other:
// one of the proofs is wrong then, and neither is trusted.
inline std::optional<DirectionBound> inside_both(const std::optional<DirectionBound>& a,
                                                 const std::optional<DirectionBound>& b) {
  if (!a || !b) return a ? a : b;
  if (!(a->lower <= b->upper && b->lower <= a->upper)) return std::nullopt;
  DirectionBound both = a->upper - a->lower <= b->upper - b->lower ? *a : *b;
  both.lower = std::max(a->lower, b->lower);
  both.upper = std::min(a->upper, b->upper);
  both.estimate = std::clamp(both.estimate, both.lower, both.upper);
  return both;
}

// The larger of the two, end by end; direction and detail are those of the larger estimate.
template <class Bound>  // EpsilonBound or DeltaBound
Bound larger_of(const DirectionBound& remove, const DirectionBound& add) {
  const bool same = remove.estimate == add.estimate;
  const DirectionBound& worse = remove.estimate >= add.estimate ? remove : add;
  Bound bound;
  bound.lower = remove.lower > add.lower ? remove.lower : add.lower;
  bound.estimate = worse.estimate;
  bound.upper = remove.upper > add.upper ? remove.upper : add.upper;
  bound.direction = same ? "both" : (&worse == &remove ? "remove" : "add");
  bound.detail = worse.detail;
  return bound;
}

// The bound of a less private run, with the lower end of a more private one, if that has any: the truth lies between.
template <class Bound>  // EpsilonBound or DeltaBound
Bound with_lower_of(Bound less_private, const std::optional<Bound>& more_private) {
  less_private.lower = more_private ? std::min(more_private->lower, less_private.upper) : 0;
  const double other = more_private ? more_private->estimate : less_private.estimate;
  less_private.estimate = std::clamp((less_private.estimate + other) / 2, less_private.lower, less_private.upper);
  return less_private;
}

// The bound found, with the upper end of another sound bound if that is lower.
template <class Bound>  // EpsilonBound or DeltaBound
Bound capped(Bound found, const Bound& otherwise) {
  if (otherwise.upper < found.upper) {
    found.upper = otherwise.upper;
    found.estimate = found.estimate < found.upper ? found.estimate : found.upper;
    found.detail += "; upper: " + otherwise.detail;
  }
  return found;
}

}  // namespace ghostshard::accountant
