// The outcomes where the integrand of a moment counts, and the strip of analyticity that decides which mesh its
// trapezoid rule needs. Both real_moment and LineMoment (contour_moments.h) rest on them.
#pragma once

#include "accountant/gaussian/sampled_gaussian.h"

namespace ghostshard::accountant {

inline constexpr double kTail = 13;        // standard deviations on either side: e^-84 is left
inline constexpr double kNegligible = 64;  // nodes below e^-64 of the largest are left out, and counted as error
inline constexpr double kPrecision = 45;   // the rule's error is e^-45 of M(c), divided by the count
inline constexpr double kSqrtTwoPi = 2.506628274631000502415765284811;

// The outcomes that count, without shift. If a unit is added, w^-c is at most e^largest_lift: far to the left only the
// Gaussian is left, whatever c is.
struct Range {
  double low, high;
};
Range outcomes_that_count(Direction direction, double q, double sigma, double c);
double largest_lift(double q, double c);

// The mesh h with exp(2 pi d/h) = e^precision times the bound of the integrand on the strip of half width d around a
// line at this shift.
double mesh_step(Direction direction, double sigma, double c, double shift, double half_width, double precision);

// h rounded down to 24 digits in base 2. Nodes k·h, k below 2^29, are then exact, and rounding never moves a node.
double exact_step(double h);

// The half width d that gives the largest step, on the axis (shift 0) or around a line of shift d. d is limited:
// rounding grows with e^(shift²/(2 sigma²)).
double best_strip(Direction direction, double sigma, double c, bool shifted, double precision);

}  // namespace ghostshard::accountant
