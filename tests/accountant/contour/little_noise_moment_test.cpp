// Moments on a line with so little noise that w = 1 - q + q·e^u is no double where half of Q's mass lies.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "accountant/contour/contour_moments.h"

namespace ghostshard::accountant {
namespace {

struct Case {
  Direction direction;
  double q, sigma, c;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Direction direction : {Direction::kRemove, Direction::kAdd})
    for (const double q : {7.25e-9, 1e-4})
      for (const double sigma : {0.03, 0.0266, 0.0214, 0.012})
        for (const double c : {0.006, 0.7}) all.push_back({direction, q, sigma, c});
  return all;
}

constexpr double kCount = 25;
constexpr double kStep = 0.001;
constexpr size_t kNodes = 40;  // more than a sweep takes one by one

LineMoment moment_of(const Case& at, bool precise) {
  const ComposedRelease release{{at.q, at.sigma}, kCount};
  return {at.direction, release, at.c, real_moment(at.direction, release.release, at.c), precise};
}

// What M(c) itself may err by.
double of_divisor(const LineMoment& moment) { return std::expm1(1.01 * kCount * moment.log_m_error()); }

template <class Real>
void expect_one_at_the_intercept(const Case& at) {
  const LineMoment moment = moment_of(at, sizeof(Real) > sizeof(double));
  const LineMoment::Value value = moment.at<Real>(0);
  if (!(value.relative_error < 1e-6)) return;  // it says little, and says so
  EXPECT_LE(static_cast<double>(std::abs(std::exp(value.log_power) - 1.0L)), value.relative_error + of_divisor(moment))
      << "sigma " << at.sigma << ", q " << at.q << ", c " << at.c << ", " << sizeof(Real) << " bytes";
}

TEST(LittleNoiseMoment, IsOneAtTheIntercept) {
  for (const Case& at : cases()) {
    expect_one_at_the_intercept<double>(at);
    expect_one_at_the_intercept<long double>(at);
  }
}

TEST(LittleNoiseMoment, IsTheSameInDoubleAndInLongDouble) {
  for (const Case& at : cases()) {
    const LineMoment here = moment_of(at, false);
    const LineMoment precise = moment_of(at, true);
    std::vector<LineMoment::Value> swept(kNodes);
    here.sweep<double>(kStep, 0, kNodes, [&](size_t k, const LineMoment::Value& value) { swept[k] = value; });
    precise.sweep<long double>(kStep, 0, kNodes, [&](size_t k, const LineMoment::Value& value) {
      if (!(value.relative_error + swept[k].relative_error < 1e-6)) return;
      const auto apart = static_cast<double>(std::abs(std::exp(swept[k].log_power - value.log_power) - 1.0L));
      EXPECT_LE(apart, 1.01 * (value.relative_error + swept[k].relative_error))
          << "sigma " << at.sigma << ", q " << at.q << ", c " << at.c << ", node " << k;
    });
  }
}

}  // namespace
}  // namespace ghostshard::accountant
