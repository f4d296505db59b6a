// A release that is executed many times, and the moment of its privacy loss on the real axis.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "accountant/gaussian/sampled_gaussian.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

// `count` executions of one release. In each, a coin that everybody sees decides between some pairs: `release` with
// probability `weight`, each alternative with its own, and `nothing` of no loss at all. The probabilities may exceed 1
// together by their rounding.
//
// With a table, the release is what the table says and no Gaussian at all. Only the grid and single_phase_delta know
// it.
struct ComposedRelease {
  struct Alternative {
    double weight;
    SampledGaussian release;
  };
  SampledGaussian release;
  double count;
  double weight = 1;
  std::vector<Alternative> alternatives{};
  double nothing = 0;
  std::shared_ptr<const DominatingPair> table{};

  bool is_mixture() const { return !alternatives.empty(); }
  bool is_table() const { return table != nullptr; }
  const LossAtoms& atoms(Direction direction, bool less_private) const {
    const DominatingPair::Direction& side = direction == Direction::kRemove ? table->remove : table->add;
    return less_private ? side.less_private : side.more_private;
  }
};

// Powers w^p with a larger exponent p·log w are computed in logarithms: e^(p·log w) itself may exceed a double.
inline constexpr double kHeavy = 50;

// log M(c) of one execution and its first two derivatives by c. M(z) = E[e^(z·loss)] is the moment generating function
// of the privacy loss (contour_moments.h has it off the axis). |log_m - log M(c)| <= error, by proof: the derivation
// stands in real_moment.cpp. Of the derivatives nothing is proven; they only tell where to look.
struct RealMoment {
  double log_m;
  double mean;
  double variance;
  double error = 0;
};
RealMoment real_moment(Direction direction, SampledGaussian release, double c);

// The same of one execution of a phase. As the coin is seen, M is the mean of the pairs' moments.
RealMoment moment_of_phase(Direction direction, const ComposedRelease& phase, double c);

// The same on a mesh of its own, whose rule errs by e^-precision·(M(c) + 1 + 2q·|p|). Nothing if it would need more
// than most_nodes.
std::optional<RealMoment> real_moment_to(Direction direction, SampledGaussian release, double c, double precision,
                                         double most_nodes);

}  // namespace ghostshard::accountant
