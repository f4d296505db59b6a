#include "fsdp/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ghostshard::tests {
namespace {

using fsdp::LearningRateSchedule;
using Shape = fsdp::ScheduleShape;

struct Point {
  const char* name;
  LearningRateSchedule schedule;
  int64_t step;
  double rate;
};
void PrintTo(const Point& p, std::ostream* out) { *out << p.name; }

constexpr double kHalfRoot = 0.70710678118654752;  // cos(pi/4)
const Point kPoints[] = {
    {"constant_first", {.peak = 0.5, .steps = 10}, 0, 0.5},
    {"constant_last", {.peak = 0.5, .steps = 10}, 9, 0.5},
    {"warmup_first", {.peak = 1.0, .steps = 10, .warmup_steps = 3}, 0, 0.25},
    {"warmup_last", {.peak = 1.0, .steps = 10, .warmup_steps = 3}, 2, 0.75},
    {"peak_after_warmup", {.peak = 1.0, .steps = 10, .warmup_steps = 3}, 3, 1.0},
    {"linear_starts_at_the_peak", {.peak = 1.0, .steps = 8, .shape = Shape::kLinear}, 0, 1.0},
    {"linear_half_way", {.peak = 1.0, .steps = 8, .shape = Shape::kLinear}, 4, 0.5},
    {"linear_last_is_not_zero", {.peak = 1.0, .steps = 8, .shape = Shape::kLinear}, 7, 0.125},
    {"linear_to_a_floor", {.peak = 1.0, .steps = 8, .shape = Shape::kLinear, .minimum = 0.5}, 4, 0.75},
    {"linear_after_warmup", {.peak = 1.0, .steps = 12, .shape = Shape::kLinear, .warmup_steps = 4}, 8, 0.5},
    {"cosine_starts_at_the_peak", {.peak = 2.0, .steps = 8, .shape = Shape::kCosine}, 0, 2.0},
    {"cosine_quarter", {.peak = 2.0, .steps = 8, .shape = Shape::kCosine}, 2, 1 + kHalfRoot},
    {"cosine_half_way", {.peak = 2.0, .steps = 8, .shape = Shape::kCosine}, 4, 1.0},
    {"cosine_to_a_floor", {.peak = 2.0, .steps = 8, .shape = Shape::kCosine, .minimum = 1.0}, 4, 1.5},
    {"cosine_after_warmup", {.peak = 2.0, .steps = 12, .shape = Shape::kCosine, .warmup_steps = 4}, 8, 1.0},
    {"one_step", {.peak = 0.1, .steps = 1, .shape = Shape::kCosine}, 0, 0.1},
};

class SchedulePoint : public ::testing::TestWithParam<Point> {};

TEST_P(SchedulePoint, FollowsTheFormula) {
  const Point& p = GetParam();
  p.schedule.check();
  // A handful of float64 operations on values of order 1.
  EXPECT_NEAR(p.schedule.at(p.step), p.rate, 1e-15 * 8);
}

INSTANTIATE_TEST_SUITE_P(LearningRate, SchedulePoint, ::testing::ValuesIn(kPoints),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(LearningRate, ClimbsThenNeverRisesAndStaysAboveTheFloor) {
  for (const Shape shape : {Shape::kConstant, Shape::kLinear, Shape::kCosine}) {
    for (const int64_t warmup : {0, 1, 7, 99}) {
      const double floor = shape == Shape::kConstant ? 0.0 : 0.01;
      const LearningRateSchedule s{.peak = 0.3, .steps = 100, .shape = shape, .warmup_steps = warmup, .minimum = floor};
      s.check();
      for (int64_t step = 0; step < 100; ++step) {
        EXPECT_GT(s.at(step), step < warmup ? 0.0 : floor);
        EXPECT_LE(s.at(step), 0.3);
        if (step == 0) continue;
        if (step <= warmup) {
          EXPECT_GT(s.at(step), s.at(step - 1));
        } else {
          EXPECT_LE(s.at(step), s.at(step - 1));
        }
      }
      EXPECT_DOUBLE_EQ(s.at(warmup), 0.3);
    }
  }
}

struct Mistake {
  const char* name;
  LearningRateSchedule schedule;
  const char* text;
};
void PrintTo(const Mistake& m, std::ostream* out) { *out << m.name; }
const double kNan = std::nan("");
const Mistake kMistakes[] = {
    {"zero_peak", {.peak = 0}, "must be finite and > 0, got 0"},
    {"nan_peak", {.peak = kNan}, "must be finite and > 0, got nan"},
    {"infinite_peak", {.peak = std::numeric_limits<double>::infinity()}, "must be finite and > 0, got inf"},
    {"no_steps", {.steps = 0}, "at least 1 step, got 0"},
    {"negative_warmup", {.steps = 5, .warmup_steps = -1}, "must be >= 0, got -1"},
    {"warmup_of_the_whole_run", {.steps = 5, .warmup_steps = 5}, "fewer than the run's 5 steps, got 5"},
    {"negative_floor", {.shape = Shape::kLinear, .minimum = -1}, "between 0 and the learning rate, got -1"},
    {"nan_floor", {.shape = Shape::kLinear, .minimum = kNan}, "between 0 and the learning rate, got nan"},
    {"floor_above_the_peak", {.peak = 0.1, .shape = Shape::kCosine, .minimum = 0.2}, "got 0.2"},
    {"floor_of_a_constant", {.peak = 0.1, .minimum = 0.05}, "it must be 0, got 0.05"},
};
class ScheduleMistake : public ::testing::TestWithParam<Mistake> {};

TEST_P(ScheduleMistake, IsNamedWithItsValue) {
  try {
    GetParam().schedule.check();
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(GetParam().text));
  }
}

INSTANTIATE_TEST_SUITE_P(LearningRate, ScheduleMistake, ::testing::ValuesIn(kMistakes),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(LearningRate, RefusesAStepOutsideTheRunAndAnUnknownShape) {
  const LearningRateSchedule s{.steps = 3};
  EXPECT_THROW((void)s.at(-1), std::invalid_argument);
  EXPECT_THROW((void)s.at(3), std::invalid_argument);
  EXPECT_THROW((void)fsdp::schedule_shape("step"), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
