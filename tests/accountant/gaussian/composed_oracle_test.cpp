// Two sampled Gaussian releases together: every engine's brackets against 40-digit quadrature.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "accountant/accountant.h"
#include "tests/accountant/gaussian/composed_oracle_rows.h"

namespace ghostshard::accountant {
namespace {

class ComposedRows : public testing::TestWithParam<ComposedRow> {
 protected:
  static std::unique_ptr<Accountant> charged(const char* name) {
    const auto& [q, sigma, other_q, other_sigma, epsilon, delta] = GetParam();
    auto engine = make_accountant(name, Adjacency::kZeroOut);
    engine->compose(PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}, 1);
    engine->compose(PoissonGaussianEvent{SamplingRate(other_q), NoiseMultiplier(other_sigma)}, 1);
    return engine;
  }
};

TEST_P(ComposedRows, TheBracketOfDeltaHoldsTheTruth) {
  for (const char* name : {"contour", "prv", "rdp"}) {
    const DeltaBound bound = charged(name)->delta(Epsilon(GetParam().epsilon));
    EXPECT_GE(static_cast<long double>(bound.upper), GetParam().delta) << name;
    EXPECT_LE(static_cast<long double>(bound.lower), GetParam().delta) << name;
  }
}

TEST_P(ComposedRows, TheBracketOfEpsilonHoldsTheTruthAndIsNarrow) {
  // delta as a double is rounded: the epsilon there differs by no more than this.
  const double rounding = 1e-12;
  for (const char* name : {"contour", "prv", "rdp"}) {
    const EpsilonBound bound = charged(name)->epsilon(Delta(static_cast<double>(GetParam().delta)));
    EXPECT_GE(bound.upper, GetParam().epsilon - rounding) << name;
    EXPECT_LE(bound.lower, GetParam().epsilon + rounding) << name;
    if (std::string(name) == "contour") {
      EXPECT_LT(bound.upper - bound.lower, 5e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Oracle, ComposedRows, testing::ValuesIn(kComposedRows));

}  // namespace
}  // namespace ghostshard::accountant
