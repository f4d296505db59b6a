// The aliases of a line (contour_line.h): to the left known or at most 1, to the right bounded.
#include <algorithm>
#include <cmath>
#include <limits>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/few_losses.h"
#include "accountant/gaussian/least_double.h"

namespace ghostshard::accountant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = std::numeric_limits<double>::epsilon();
constexpr auto kLongRounding = static_cast<double>(std::numeric_limits<long double>::epsilon());

}  // namespace

// In long double: each of its four functions errs by a unit or two, and by as much as its argument does.
ContourLine::Left ContourLine::left_alias(double epsilon) const {
  if (!(period_ - epsilon >= below_zero_ * (1 + 1e-12)) || !(period_ > epsilon)) return {};
  const auto period = static_cast<long double>(period_);
  const long double one = 1 / std::expm1(c_ * period);
  const long double falling = std::exp(static_cast<long double>(epsilon)) / std::expm1((c_ + 1.0L) * period);
  const double units = 16 + 4 * (c_ + 1) * period_ + 2 * std::abs(epsilon);
  const auto known = static_cast<double>(one - falling);
  return {known, static_cast<double>(-falling),
          kLongRounding * units * static_cast<double>(one + falling) + 2 * kRounding * std::abs(known)};
}

// Σ_{k>=1} e^(ckP)·delta(eps + kP), all by Chernoff, or the first ones by closed forms.
double ContourLine::right_alias(double epsilon) const {
  const auto by_chernoff = [&](double first_k) {
    double right = kInfinity;
    for (const auto& [c, k] : chernoff_) {
      const double far = (c - c_) * period_ * first_k;
      const double first = std::exp(log_chernoff(c, k, epsilon) - far) * (1 + 4 * kRounding * (2 + far)) + kLeast;
      right = std::min(right, first / -std::expm1(-(c - c_) * period_) * (1 + 8 * kRounding));
    }
    return right;
  };
  const double all = by_chernoff(1);
  if (told_ == 0) return all;
  return std::min(all, told_aliases(epsilon) + by_chernoff(static_cast<double>(told_ + 1)));
}

// delta falls with epsilon: what holds a little below holds here, and need not be computed anew.
double ContourLine::told_aliases(double epsilon) const {
  if (!(epsilon >= told_from_ && epsilon <= 1.1 * told_from_)) {
    told_from_ = 0.97 * epsilon;
    told_sum_ = 0;
    for (int64_t k = 1; k <= told_; ++k) {
      const double far = c_ * period_ * static_cast<double>(k);
      told_sum_ += few_losses_delta(told_phases_, told_from_ + period_ * static_cast<double>(k) * (1 - 1e-15)) *
                   std::exp(far) * (1 + 4 * kRounding * (2 + far));
    }
    told_sum_ *= 1 + 1e-12;
  }
  return told_sum_;
}

}  // namespace ghostshard::accountant
