// The grid engine on runs of several phases, beside the contour.
#include <gtest/gtest.h>

#include "accountant/accountant.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

// A Gaussian that is not sampled beside releases that are: its losses have no least value that exp could round to, and
// e^loss may be too large for a double where the probability is too small.
struct Mixed {
  const char* name;
  double unsampled;
  int64_t times;
  double delta;
};

void PrintTo(const Mixed& c, std::ostream* out) { *out << c.name; }

class MixedPhases : public testing::TestWithParam<Mixed> {};

TEST_P(MixedPhases, AreBracketedNarrowlyAndMeetTheContour) {
  const auto& [name, sigma, times, delta] = GetParam();
  const OracleTruth run{"", {{0.02, 0.9, 500}, {1, sigma, times}}, delta, 0, 0};
  const EpsilonBound grid = charged("prv", run)->epsilon(Delta(delta));
  const EpsilonBound line = charged("contour", run)->epsilon(Delta(delta));
  EXPECT_LT(line.upper - line.lower, 1e-6);
  EXPECT_LE(grid.lower, line.upper);
  EXPECT_GE(grid.upper, line.lower);
  EXPECT_LT(grid.upper - grid.lower, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(BesideSampledOnes, MixedPhases,
                         testing::Values(Mixed{"MuchNoise", 20, 3, 1e-6}, Mixed{"LittleNoise", 0.5, 1, 1e-6},
                                         Mixed{"LessNoise", 0.3, 4, 1e-9}, Mixed{"LossesBeyondExp", 0.3, 150, 1e-9},
                                         // All of Q lies e^thousands below: one cell holds it, and no double does.
                                         Mixed{"ThousandsOfLosses", 0.5, 2000, 1e-9}),
                         [](const auto& c) { return c.param.name; });

TEST(Prv, AgreesWithTheContourOnPhases) {
  const OracleTruth run{"", {{0.02, 1.4, 300}, {0.05, 2.5, 200}, {1, 60, 4}}, 1e-7, 0, 0};
  const EpsilonBound grid = charged("prv", run)->epsilon(Delta(run.delta));
  const EpsilonBound line = charged("contour", run)->epsilon(Delta(run.delta));
  EXPECT_LE(grid.lower, line.upper);
  EXPECT_GE(grid.upper, line.lower);
  EXPECT_LT(grid.upper - grid.lower, 1e-3);
  const DeltaBound at = charged("prv", run)->delta(Epsilon(line.estimate));
  EXPECT_LE(at.lower, run.delta * (1 + 1e-9));
  EXPECT_GE(at.upper, run.delta * (1 - 1e-9));
}

}  // namespace
}  // namespace ghostshard::accountant
