// The bound on M - 1 for complex rates and noises against quadrature, which needs no shift of the path.
#include "accountant/contour/excess_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <random>

#include "accountant/gaussian/composed_release.h"

namespace ghostshard::accountant {
namespace {

using Complex = std::complex<double>;

// ∫ k_v(u)·(w^p - 1 - p(w - 1)) du along the real axis, by the trapezoid rule on a mesh far finer than it needs.
Complex moment_less_one(Direction direction, Complex z, Complex v, Complex q) {
  const Complex p = direction == Direction::kRemove ? 1.0 + z : -z;
  const double deviation = std::sqrt(std::abs(v));
  const double low = -14 * deviation - std::abs(v);
  const double high = std::max(p.real() + 1, 1.0) * std::abs(v) + 14 * deviation;
  constexpr int kPoints = 6000;
  const double h = (high - low) / kPoints;
  Complex sum = 0;
  for (int i = 0; i <= kPoints; ++i) {
    const double u = low + i * h;
    const Complex w = 1.0 - q + q * std::exp(u);
    const Complex density = std::exp(-u * u / (2.0 * v) - u / 2 - v / 8.0) / std::sqrt(2 * std::numbers::pi * v);
    sum += density * (std::exp(p * std::log(w)) - 1.0 - p * (w - 1.0)) * h;
  }
  return sum;
}

class Draw {
 public:
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  double log_uniform(double low, double high) { return std::exp(uniform(std::log(low), std::log(high))); }

 private:
  std::mt19937_64 random_{5};
};

TEST(ExcessBound, HoldsInTheWholeNeighbourhood) {
  Draw draw;
  int close = 0;
  for (int i = 0; i < 60; ++i) {
    const Direction direction = i % 2 == 0 ? Direction::kRemove : Direction::kAdd;
    const double v = draw.log_uniform(0.02, 4);
    const double q = draw.log_uniform(1e-4, 0.5);
    const double c = draw.log_uniform(0.05, 40);
    const double t = draw.log_uniform(0.1, 20) * c;
    const double theta = draw.uniform(0, 0.8);
    // On the path of the quadrature w^p may be e^(t·phi) larger than the moment is.
    const double phi = i % 4 < 2 ? 0 : draw.uniform(0, std::min({0.8, 1.2 * std::sqrt(v), 5 / t}));
    const double bound = excess_bound(direction, c, t, {0.8 * v, 1.2 * v, theta, q, phi});
    double most = 0;
    // The corners, and a place inside.
    for (const double side : {-1.0, 0.0, 1.0, draw.uniform(-1, 1)}) {
      const Complex rate = std::polar(side == 0 ? q : q * draw.uniform(0.5, 1), phi * (side == 0 ? 1 : side));
      most = std::max(most, std::abs(moment_less_one(direction, {c, t}, std::polar(1.2 * v, theta * side), rate)));
      most =
          std::max(most, std::abs(moment_less_one(direction, {c, 0.3 * t}, std::polar(0.8 * v, -theta * side), rate)));
    }
    // The quadrature rounds each of some thousand terms, of about 1 or of the moment's size.
    EXPECT_LE(most * (1 - 1e-9), bound + 1e-11) << i << ": c " << c << " t " << t << " v " << v << " q " << q;
    if (most > bound / 5) ++close;
  }
  EXPECT_GE(close, 20) << "of 60 a third and more lie within a factor of five";
}

// Far out κ·(M(c) - 1) exceeds 1 without end, M itself does not.
TEST(ExcessBound, IsUsefulFarOutOnALine) {
  const double c = 2.35;
  const double t = 73;
  const double kappa = std::hypot(c, t) * std::hypot(1 + c, t) / (c * (1 + c));
  const RealMoment moment = real_moment(Direction::kRemove, {0.00115, 0.483}, c);
  const double v = 1 / (0.483 * 0.483);
  EXPECT_GT(kappa * std::expm1(moment.log_m), 2);
  EXPECT_LT(excess_bound(Direction::kRemove, c, t, {v, v, 0.2, 0.00115, 0}), 0.5);
}

TEST(ExcessBound, SaysNothingWhereTheProofEnds) {
  EXPECT_TRUE(std::isinf(excess_bound(Direction::kRemove, 2, 3, {1, 1, 0.2, 1, 0})));
  EXPECT_TRUE(std::isinf(excess_bound(Direction::kAdd, 2, 3, {1, 1, 0.2, 0.995, 0.1})));
  EXPECT_TRUE(std::isinf(excess_bound(Direction::kRemove, 2, 3, {1, 1, 1.4, 0.1, 0.5})));
  EXPECT_TRUE(std::isinf(excess_bound(Direction::kRemove, 1e6, 3, {1, 1, 0.2, 0.5, 0})));
}

}  // namespace
}  // namespace ghostshard::accountant
