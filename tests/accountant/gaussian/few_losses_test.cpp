// Closed forms of few large losses: on either side of what the line integral, the closed form of one release, or a
// narrow grid says, and of use where a grid's rounding hides delta.
#include "accountant/gaussian/few_losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

std::vector<ComposedRelease> phases_of(const OracleTruth& run) {
  std::vector<ComposedRelease> phases;
  for (const OraclePhase& phase : run.phases)
    phases.push_back({{phase.q, phase.sigma}, static_cast<double>(phase.steps)});
  return phases;
}

// Without a truth: a narrow bracket stands for it.
class FewLosses : public testing::TestWithParam<OracleTruth> {};

TEST_P(FewLosses, HoldWhatANarrowBracketSays) {
  const Bracket found = few_losses_epsilon(phases_of(GetParam()), Delta(GetParam().delta));
  const EpsilonBound narrow = charged("contour", GetParam())->epsilon(Delta(GetParam().delta));
  ASSERT_LT(narrow.upper - narrow.lower, 1e-3 * narrow.upper);
  EXPECT_LE(found.lower, narrow.upper);
  EXPECT_GE(found.upper, narrow.lower);
}

INSTANTIATE_TEST_SUITE_P(Runs, FewLosses,
                         testing::Values(OracleTruth{"OneOfFew", {{1e-6, 0.4, 5}}, 1e-12, 0, 0},
                                         OracleTruth{"LargeLosses", {{1.3e-7, 0.4, 8}}, 1.6e-30, 0, 0},
                                         OracleTruth{"SmallLosses", {{1e-5, 2, 20}}, 1e-9, 0, 0},
                                         OracleTruth{"TwoPhases", {{1e-5, 0.5, 30}, {1e-6, 0.3, 3}}, 1e-8, 0, 0},
                                         OracleTruth{"ManyLosses", {{0.01, 1, 10000}}, 1e-5, 0, 0},
                                         OracleTruth{"BesideUnsampled", {{1e-5, 0.5, 30}, {1, 2, 1}}, 1e-8, 0, 0},
                                         OracleTruth{"OneVisit", {{1e-5, 0.55, 1000}}, 1e-4, 0, 0}),
                         [](const auto& c) { return std::string(c.param.name); });

TEST(FewLosses, OfOneReleaseAreItsClosedForm) {
  for (const double delta : {1e-6, 1e-12, 1e-25}) {
    const SampledGaussian release{1e-5, 0.7};
    const Bracket exact = single_release_epsilon(Direction::kRemove, release, Delta(delta));
    const Bracket found = few_losses_epsilon({{release, 1}}, Delta(delta));
    EXPECT_LE(found.lower, exact.upper * (1 + 1e-12)) << delta;
    EXPECT_GE(found.upper, exact.lower * (1 - 1e-12)) << delta;
    EXPECT_GT(found.lower, 0.98 * exact.lower) << delta;
  }
}

// delta is 40 powers of e below what a transform rounds: a grid alone says [0, 0.23], [0, 0.68] and [0, 0.0016] here.
class HiddenByRounding : public testing::TestWithParam<OracleTruth> {};

TEST_P(HiddenByRounding, IsBracketedByBothEngines) {
  for (const char* engine : {"contour", "prv"})
    for (const Effort effort : {Effort::kTight, Effort::kQuick}) {
      const EpsilonBound found = charged(engine, GetParam())->epsilon(Delta(GetParam().delta), effort);
      EXPECT_GT(found.lower, 0.5 * found.upper) << engine;
    }
}

INSTANTIATE_TEST_SUITE_P(Runs, HiddenByRounding,
                         testing::Values(OracleTruth{"TwoSteps", {{3.35e-7, 0.774, 2}}, 1.1e-27, 0, 0},
                                         OracleTruth{"EightSteps", {{1.3e-7, 0.7, 8}}, 1.6e-30, 0, 0},
                                         OracleTruth{"MoreNoise", {{1.3e-7, 1, 8}}, 1.6e-30, 0, 0}),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace ghostshard::accountant
