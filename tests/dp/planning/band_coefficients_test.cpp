// The ratios of noise bands: their error against whole matrices, their slopes against differences, the optimum against
// jax-privacy's (2.0.0, toeplitz.optimize_banded_toeplitz in float64, 2,000 steps).
#include "dp/planning/band_coefficients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace ghostshard::tests {
namespace {

using dp::BandWorkload;
using Matrix = std::vector<std::vector<double>>;

Matrix zeros(size_t n) { return Matrix(n, std::vector<double>(n, 0)); }

// A with A_{t,i} = Σ_{s=i}^{t} η_s·β^{s−i}.
Matrix moved_by(const BandWorkload& workload) {
  const size_t n = workload.rates.size();
  Matrix a = zeros(n);
  for (size_t t = 0; t < n; ++t) {
    for (size_t i = 0; i <= t; ++i) {
      for (size_t s = i; s <= t; ++s) {
        a[t][i] += workload.rates[s] * std::pow(workload.momentum, static_cast<double>(s - i));
      }
    }
  }
  return a;
}

// X with X·R = A, for R = Toeplitz(1, a_1, …) lower triangular.
Matrix over_bands(const Matrix& a, const std::vector<double>& ratios) {
  const size_t n = a.size();
  Matrix x = zeros(n);
  for (size_t t = 0; t < n; ++t) {
    for (size_t j = n; j-- > 0;) {
      x[t][j] = a[t][j];
      for (size_t k = 1; k <= ratios.size() && j + k < n; ++k) x[t][j] -= ratios[k - 1] * x[t][j + k];
    }
  }
  return x;
}

double error_by_matrices(const std::vector<double>& ratios, const BandWorkload& workload) {
  double norm = 1;
  for (const double ratio : ratios) norm += ratio * ratio;
  double squares = 0;
  for (const auto& row : over_bands(moved_by(workload), ratios)) {
    for (const double value : row) squares += value * value;
  }
  return norm * squares / static_cast<double>(workload.rates.size());
}

BandWorkload prefix_sums(size_t steps) { return {.rates = std::vector<double>(steps, 1.0), .momentum = 0}; }

BandWorkload falling(size_t steps, double momentum) {
  BandWorkload workload{.rates = {}, .momentum = momentum};
  for (size_t s = 0; s < steps; ++s) {
    workload.rates.push_back(1e-3 * (1.01 + std::cos(3.14159 * static_cast<double>(s) / static_cast<double>(steps))));
  }
  return workload;
}

TEST(BandCoefficients, HaveTheErrorOfWholeMatrices) {
  for (const BandWorkload& workload : {prefix_sums(40), falling(40, 0.9), falling(7, 0)}) {
    for (const std::vector<double>& ratios : {std::vector<double>{}, {0.5}, {0.66, 0.55, 0.47}, {0.9, -0.3}}) {
      const double expected = error_by_matrices(ratios, workload);
      EXPECT_NEAR(dp::band_error_and_slopes(ratios, workload).error, expected, 1e-12 * expected);
    }
  }
}

TEST(BandCoefficients, HaveTheSlopesOfDifferences) {
  const BandWorkload workload = falling(50, 0.9);
  const std::vector<double> ratios{0.6, 0.4, 0.2};
  const auto found = dp::band_error_and_slopes(ratios, workload);
  constexpr double kStep = 1e-5;  // central: truncation of order 1e-10, rounding of order 1e-16/1e-5
  for (size_t k = 0; k < ratios.size(); ++k) {
    auto more = ratios, less = ratios;
    more[k] += kStep;
    less[k] -= kStep;
    const double slope = (error_by_matrices(more, workload) - error_by_matrices(less, workload)) / (2 * kStep);
    EXPECT_NEAR(found.slopes[k], slope, 1e-7 * std::abs(found.error)) << k;
  }
}

TEST(BandCoefficients, AreThoseOfJaxPrivacyForPrefixSums) {
  struct Peer {
    int64_t steps;
    std::vector<double> ratios;
  };
  const Peer peers[] = {
      {60, {0.723599969}},
      {60, {0.664794032, 0.555083947, 0.472711007}},
      {200, {0.663634231, 0.574995379, 0.524786992, 0.487612436, 0.455431694, 0.423664926, 0.386556337}},
  };
  for (const Peer& peer : peers) {
    const auto bands = static_cast<int64_t>(peer.ratios.size()) + 1;
    const auto found = dp::optimal_band_ratios(bands, prefix_sums(static_cast<size_t>(peer.steps)));
    ASSERT_EQ(found.size(), peer.ratios.size());
    for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], peer.ratios[k], 1e-6) << bands << " bands, " << k;
  }
}

TEST(BandCoefficients, CannotBeImprovedByAnyRatioAlone) {
  const BandWorkload workload = falling(120, 0.9);
  const auto best = dp::optimal_band_ratios(8, workload);
  const double least = error_by_matrices(best, workload);
  EXPECT_LT(least, 0.8 * error_by_matrices({}, workload)) << "the bands are of no use";
  for (size_t k = 0; k < best.size(); ++k) {
    for (const double move : {-1e-3, 1e-3}) {
      auto other = best;
      other[k] += move;
      EXPECT_GE(error_by_matrices(other, workload), least) << k;
    }
  }
}

TEST(BandCoefficients, OfALongRunAreThoseOfAThinnedOne) {
  const auto found = dp::optimal_band_ratios(2, falling(20'000, 0));
  const auto shorter = dp::optimal_band_ratios(2, falling(1024, 0));
  for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], shorter[k], 1e-3);
}

TEST(BandCoefficients, RefuseAnImpossibleWorkload) {
  EXPECT_THROW((void)dp::optimal_band_ratios(0, prefix_sums(3)), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_band_ratios(4, prefix_sums(3)), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_band_ratios(2, {.rates = {1, 0}, .momentum = 0}), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_band_ratios(2, {.rates = {1, 1}, .momentum = 1}), std::invalid_argument);
}

TEST(BandCoefficients, WeighWorkloadsByTheirShareOfTheParameters) {
  const BandWorkload slow = falling(60, 0.95), fast = falling(60, 0);
  const auto alone = dp::optimal_band_ratios(4, slow);
  EXPECT_EQ(dp::optimal_band_ratios(4, {{slow, 1}}), alone);
  const auto mostly = dp::optimal_band_ratios(4, {{slow, 9}, {fast, 1}});
  const auto mean = [&](const std::vector<double>& ratios) {
    return 0.9 * std::log(error_by_matrices(ratios, slow)) + 0.1 * std::log(error_by_matrices(ratios, fast));
  };
  const double least = mean(mostly);
  EXPECT_LT(least, mean(alone) - 1e-6);
  EXPECT_LT(least, mean(dp::optimal_band_ratios(4, fast)) - 1e-6);
  for (size_t k = 0; k < mostly.size(); ++k) {
    for (const double moved : {-1e-3, 1e-3}) {
      auto near = mostly;
      near[k] += moved;
      EXPECT_LE(least, mean(near)) << "ratio " << k;
    }
  }
  EXPECT_THROW((void)dp::optimal_band_ratios(4, {{slow, -1}}), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
