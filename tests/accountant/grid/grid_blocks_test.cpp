// Blocks of steps on a fine grid that is a circle: wherever its window lies, what is outside is bounded. The truth is
// the line integral's, which shares nothing with grids. (engines/prv_test.cpp has windows as they are planned.)
#include "accountant/grid/grid_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "accountant/contour/contour_line.h"
#include "accountant/gaussian/chernoff.h"
#include "accountant/grid/grid_side.h"

namespace ghostshard::accountant {
namespace {

struct Window {
  const char* name;
  Direction direction;
  ComposedRelease phase;
  double epsilon;
  double share;  // of the period that the window is moved by; 0.5: about to the middle of the losses
};

void PrintTo(const Window& c, std::ostream* out) { *out << c.name; }

class MovedWindow : public testing::TestWithParam<Window> {};

TEST_P(MovedWindow, GivesBounds) {
  const auto& [name, direction, phase, epsilon, share] = GetParam();
  constexpr size_t kPoints = size_t{1} << 16;
  const std::vector<ComposedRelease> phases = {phase};
  const auto saddle = saddle_of_epsilon(direction, phases, epsilon);
  ASSERT_TRUE(saddle);
  const auto line = ContourLine::make(direction, phases, *saddle, epsilon, -12, 0, 100'000'000);
  ASSERT_TRUE(line);
  const Bracket truth = line->at(epsilon).bracket;
  const double log_delta = std::log(truth.upper);
  const Sketches sketches(direction, phases, log_delta);
  const double c = sketches.saddle_of(epsilon);
  const auto shape = shape_for(sketches, c, epsilon - 1 / c, epsilon, log_delta, 1e-4, kPoints);
  ASSERT_TRUE(shape);
  auto plan = plan_blocks(sketches, phases, *shape, log_delta, 1e-9, kPoints);
  ASSERT_TRUE(plan);
  const double period = plan->h * static_cast<double>(plan->coarse.grid.n);
  for (auto* parts : {&plan->less_private, &plan->more_private})
    for (BlockPlan::Part& part : *parts) part.start += share * period;
  const Side upper(pieces_of_blocks(direction, phases, *plan, true), plan->coarse, true);
  const Side lower(pieces_of_blocks(direction, phases, *plan, false), plan->coarse, false);
  EXPECT_GE(upper.delta(epsilon), truth.lower);
  EXPECT_LE(lower.delta(epsilon) - alias(lower, plan->coarse.grid.c, epsilon), truth.upper);
}

const ComposedRelease kRun{{0.01, 1}, 1e6};
INSTANTIATE_TEST_SUITE_P(Windows, MovedWindow,
                         testing::Values(Window{"AsPlanned", Direction::kRemove, kRun, 139, 0},
                                         Window{"FourDeviationsLate", Direction::kRemove, kRun, 139, 0.26},
                                         Window{"ThreeDeviationsLate", Direction::kRemove, kRun, 139, 0.32},
                                         Window{"AtTheMiddle", Direction::kRemove, kRun, 139, 0.5},
                                         Window{"AddThreeDeviationsLate", Direction::kAdd, kRun, 135, 0.32},
                                         Window{"TooEarly", Direction::kRemove, kRun, 139, -0.5},
                                         Window{"AddAtTheMiddle", Direction::kAdd, kRun, 135, 0.5},
                                         Window{"AddTooEarly", Direction::kAdd, kRun, 135, -0.5}),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace ghostshard::accountant
