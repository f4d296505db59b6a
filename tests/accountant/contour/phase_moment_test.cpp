// The rest of a line of several phases, of which those that cost much are bounded by M(c) alone.
#include "accountant/contour/phase_moment.h"

#include <gtest/gtest.h>

#include <vector>

namespace ghostshard::accountant {
namespace {

constexpr double kC = 0.05;
constexpr double kAlways = 1e9;
constexpr double kNever = -1e9;

std::vector<PhaseMoment> moments() {
  std::vector<PhaseMoment> found;
  for (const ComposedRelease& phase :
       std::vector<ComposedRelease>{{{0.3, 0.01}, 4}, {{1, 3}, 40}, {{0.02, 2}, 100}, {{0.01, 0.012}, 10}})
    found.emplace_back(Direction::kRemove, phase, kC, false);
  return found;
}

TEST(RestOfAll, IsAboveTheMomentsEvenIfSomeAreNotLookedAt) {
  const std::vector<PhaseMoment> all = moments();
  ASSERT_GT(all[0].nodes(), 2000U);
  ASSERT_GT(all[3].nodes(), 2000U);
  for (const double t : {0.5, 2.0, 5.0}) {
    double there = 0;
    for (const PhaseMoment& moment : all)
      moment.sweep<double>(t, 0, 2, [&](size_t k, const LineMoment::Value& value) {
        if (k == 1) there += static_cast<double>(value.log_power.real());
      });
    EXPECT_GE(log_rest_of_all(all, t, kNever), there) << t;
    EXPECT_GE(log_rest_of_all(all, t, kAlways), log_rest_of_all(all, t, kNever)) << t;
    EXPECT_GE(log_rest_of_all(all, t, kAlways), all[1].log_rest(t) + all[2].log_rest(t)) << t;
  }
}

TEST(RestOfAll, AsksCostlyMomentsOnlyIfTheOthersAreTooLarge) {
  const std::vector<PhaseMoment> all = moments();
  const double of_few = all[1].log_rest(5) + all[2].log_rest(5);
  EXPECT_DOUBLE_EQ(log_rest_of_all(all, 5, of_few + 1), of_few + all[0].log_most() + all[3].log_most());
  EXPECT_LT(log_rest_of_all(all, 5, of_few - 1), of_few);
}

}  // namespace
}  // namespace ghostshard::accountant
