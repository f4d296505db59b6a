// A release that is executed many times, and the moment of its privacy loss on the real axis.
#pragma once

#include "accountant/gaussian/sampled_gaussian.h"

namespace ghostshard::accountant {

// `count` executions of one release.
struct ComposedRelease {
  SampledGaussian release;
  double count;
};

// Powers w^p with a larger exponent p·log w are computed in logarithms: e^(p·log w) itself may exceed a double.
inline constexpr double kHeavy = 50;

// log M(c) of one execution and its first two derivatives by c, to about 1e-13 relative.
// M(z) = E[e^(z·loss)] is the moment generating function of the privacy loss (contour_moments.h has it off the axis).
struct RealMoment {
  double log_m;
  double mean;
  double variance;
};
RealMoment real_moment(Direction direction, SampledGaussian release, double c);

}  // namespace ghostshard::accountant
