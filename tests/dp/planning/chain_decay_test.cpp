// The decay of a noise chain: its error against whole matrices, and the optimum against its neighbours.
#include "dp/planning/chain_decay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace ghostshard::tests {
namespace {

using dp::BandWorkload;
using Matrix = std::vector<std::vector<double>>;

Matrix zeros(size_t n) { return Matrix(n, std::vector<double>(n, 0)); }

// (1/T)·‖A·X‖², with X of the noise x = X·z.
double error_by_matrices(size_t chain, double decay, const BandWorkload& workload) {
  const size_t n = workload.rates.size();
  Matrix x = zeros(n);
  for (size_t t = 0; t < n; ++t) {
    double column = 0;
    for (size_t i = 0; i < chain - t % chain; ++i) column += std::pow(decay, 2.0 * static_cast<double>(i));
    x[t][t] = std::sqrt(column);
    if (t % chain != 0) x[t][t - 1] = -decay * x[t][t];
  }
  double squares = 0;
  for (size_t t = 0; t < n; ++t) {
    std::vector<double> row(n, 0);
    for (size_t i = 0; i <= t; ++i) {
      double moved = 0;
      for (size_t s = i; s <= t; ++s) {
        moved += workload.rates[s] * std::pow(workload.momentum, static_cast<double>(s - i));
      }
      for (size_t j = 0; j < n; ++j) row[j] += moved * x[i][j];
    }
    for (const double value : row) squares += value * value;
  }
  return squares / static_cast<double>(n);
}

BandWorkload falling(size_t steps, double momentum) {
  BandWorkload workload{.rates = {}, .momentum = momentum};
  for (size_t s = 0; s < steps; ++s) {
    workload.rates.push_back(1.01 + std::cos(3.14159 * static_cast<double>(s) / static_cast<double>(steps)));
  }
  return workload;
}

TEST(ChainDecay, HasTheErrorOfWholeMatrices) {
  for (const BandWorkload& workload : {falling(40, 0.9), falling(41, 0), falling(8, 0.5)}) {
    for (const size_t chain : {1, 2, 5, 8}) {
      for (const double decay : {0.0, 0.3, 0.9, 1.0}) {
        const double expected = error_by_matrices(chain, decay, workload);
        EXPECT_NEAR(dp::chain_error(static_cast<int64_t>(chain), decay, workload), expected, 1e-12 * expected)
            << chain << " steps, decay " << decay;
      }
    }
  }
}

TEST(ChainDecay, CannotBeImproved) {
  // Of one chain, the whole run, a smaller decay is best; of ten chains a larger one, 1 at most.
  for (const size_t chain : {120, 12}) {
    const BandWorkload workload{.rates = std::vector<double>(120, 1.0), .momentum = 0};
    const double best = dp::optimal_chain_decay(static_cast<int64_t>(chain), workload);
    const double least = error_by_matrices(chain, best, workload);
    EXPECT_LT(least, 0.8 * error_by_matrices(chain, 0, workload)) << "the chain is of no use";
    for (const double other : {best - 1e-3, std::min(1.0, best + 1e-3), best / 2}) {
      EXPECT_GE(error_by_matrices(chain, other, workload), least * (1 - 1e-12)) << chain << " steps, " << other;
    }
  }
}

// Over chains of b steps the noise of a prefix sum grows by about 1 + ln(b)/4 for each chain, where white noise's grows
// by b.
TEST(ChainDecay, LeavesLittleOfAChainsNoiseInLaterSums) {
  const BandWorkload sums{.rates = std::vector<double>(1600, 1.0), .momentum = 0};
  const double white = dp::chain_error(1, 0, sums);
  EXPECT_NEAR(white, 1601.0 / 2, 1.0);
  EXPECT_LT(dp::chain_error(16, dp::optimal_chain_decay(16, sums), sums), 0.15 * white);
}

TEST(ChainDecay, OfALongRunIsThatOfSomeOfItsSums) {
  const BandWorkload workload = falling(3000, 0.9);
  EXPECT_NEAR(dp::optimal_chain_decay(8, workload), dp::optimal_chain_decay(8, falling(1024, 0.9)), 0.02);
}

TEST(ChainDecay, RefusesAnImpossibleWorkload) {
  EXPECT_EQ(dp::optimal_chain_decay(1, falling(3, 0)), 0);
  EXPECT_THROW((void)dp::optimal_chain_decay(4, falling(3, 0)), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_chain_decay(0, falling(3, 0)), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_chain_decay(1, BandWorkload{}), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_chain_decay(2, {.rates = {1, 0}, .momentum = 0}), std::invalid_argument);
  EXPECT_THROW((void)dp::chain_error(2, 1.5, falling(3, 0)), std::invalid_argument);
}

// Parameters with another momentum: what serves both, near what serves the most of them.
TEST(ChainDecay, WeighsWorkloadsByTheirShareOfTheParameters) {
  const BandWorkload slow = falling(60, 0.95), fast = falling(60, 0);
  const double alone = dp::optimal_chain_decay(60, slow), other = dp::optimal_chain_decay(60, fast);
  ASSERT_GT(std::abs(alone - other), 0.01) << "one decay serves both: the test would show nothing";
  EXPECT_EQ(dp::optimal_chain_decay(60, {{slow, 3}, {slow, 1}}), alone);
  const double mostly = dp::optimal_chain_decay(60, {{slow, 9}, {fast, 1}});
  EXPECT_GT((mostly - alone) * (other - mostly), 0) << "between them";
  const auto mean = [&](double decay) {
    return 0.9 * std::log(error_by_matrices(60, decay, slow)) + 0.1 * std::log(error_by_matrices(60, decay, fast));
  };
  for (const double near : {mostly - 1e-3, mostly + 1e-3, alone, other}) EXPECT_LE(mean(mostly), mean(near) + 1e-9);
  // Another unit of the rates, or of the shares, is no other workload.
  BandWorkload scaled = fast;
  for (double& rate : scaled.rates) rate *= 1000;
  EXPECT_EQ(dp::optimal_chain_decay(60, {{slow, 18}, {scaled, 2}}), mostly);
  EXPECT_THROW((void)dp::optimal_chain_decay(60, std::vector<dp::WorkloadShare>{}), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_chain_decay(60, {{slow, 0}}), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_chain_decay(60, {{slow, 1}, {falling(61, 0), 1}}), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
