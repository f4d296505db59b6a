// The outputs and decays of noise buffers: their error against whole matrices, its slopes, and the optimum against its
// neighbours.
#include "dp/planning/blt_coefficients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace ghostshard::tests {
namespace {

using dp::BandWorkload;
using dp::BltCoefficients;
using Matrix = std::vector<std::vector<double>>;

// s²·(1/T)·‖A·R⁻¹‖², each from its definition: s² over the steps of the units that come first.
double error_by_matrices(const BltCoefficients& blt, size_t apart, const BandWorkload& workload) {
  const size_t n = workload.rates.size();
  Matrix r(n, std::vector<double>(n, 0));
  for (size_t t = 0; t < n; ++t) {
    r[t][t] = 1;
    for (size_t i = 0; i < t; ++i) {
      for (size_t j = 0; j < blt.outputs.size(); ++j) {
        r[t][i] += blt.outputs[j] * std::pow(blt.decays[j], static_cast<double>(t - i - 1));
      }
    }
  }
  double sensitivity = 0;
  for (size_t t = 0; t < n; ++t) {
    double row = 0;
    for (size_t i = 0; i < n; i += apart) row += r[t][i];
    sensitivity += row * row;
  }
  double squares = 0;
  for (size_t t = 0; t < n; ++t) {
    std::vector<double> v(n, 0);  // the row A_t, then v·R⁻¹ by back substitution
    for (size_t i = 0; i <= t; ++i) {
      for (size_t s = i; s <= t; ++s)
        v[i] += workload.rates[s] * std::pow(workload.momentum, static_cast<double>(s - i));
    }
    for (size_t i = n; i-- > 0;) {
      for (size_t k = i + 1; k < n; ++k) v[i] -= v[k] * r[k][i];
      squares += v[i] * v[i];
    }
  }
  return sensitivity * squares / static_cast<double>(n);
}

BandWorkload prefix_sums(size_t steps) { return {.rates = std::vector<double>(steps, 1.0), .momentum = 0}; }

BandWorkload falling(size_t steps, double momentum) {
  BandWorkload workload{.rates = {}, .momentum = momentum};
  for (size_t s = 0; s < steps; ++s) {
    workload.rates.push_back(1.01 + std::cos(3.14159 * static_cast<double>(s) / static_cast<double>(steps)));
  }
  return workload;
}

const BltCoefficients kOne{{0.3}, {0.8}}, kTwo{{0.3, 0.05}, {0.2, 0.97}};

TEST(BltCoefficients, HaveTheErrorOfWholeMatrices) {
  for (const BandWorkload& workload : {prefix_sums(30), falling(41, 0.9), prefix_sums(1), falling(2, 0.5)}) {
    for (const BltCoefficients& blt : {kOne, kTwo}) {
      for (const size_t apart : {1, 4, 100}) {
        const double expected = error_by_matrices(blt, apart, workload);
        EXPECT_NEAR(dp::blt_error_and_slopes(blt, static_cast<int64_t>(apart), workload).error, expected,
                    1e-11 * expected)
            << apart << " apart, " << workload.rates.size() << " steps";
      }
    }
  }
}

TEST(BltCoefficients, HaveTheSlopesOfDifferences) {
  const BandWorkload workload = falling(40, 0.9);
  const auto found = dp::blt_error_and_slopes(kTwo, 7, workload);
  ASSERT_EQ(found.slopes.size(), 4U);
  constexpr double kStep = 1e-6;  // central: truncation of order 1e-12, rounding of order 1e-16/1e-6
  for (size_t i = 0; i < 4; ++i) {
    const auto moved = [&](double by) {
      BltCoefficients other = kTwo;
      (i < 2 ? other.outputs[i] : other.decays[i - 2]) += by;
      return error_by_matrices(other, 7, workload);
    };
    EXPECT_NEAR(found.slopes[i], (moved(kStep) - moved(-kStep)) / (2 * kStep), 1e-6 * found.error) << i;
  }
}

TEST(BltCoefficients, CannotBeImprovedByAnyNumberAlone) {
  const BandWorkload workload = falling(90, 0.9);
  const auto best = dp::optimal_blt(2, 15, workload);
  const double least = error_by_matrices(best, 15, workload);
  EXPECT_LT(least, 0.5 * error_by_matrices({{0.0}, {0.5}}, 15, workload)) << "the buffers are of no use";
  for (size_t i = 0; i < 4; ++i) {
    for (const double factor : {0.98, 1.02}) {
      BltCoefficients other = best;
      double& number = i < 2 ? other.outputs[i] : other.decays[i - 2];
      number = i < 2 ? number * factor : 1 - (1 - number) * factor;
      EXPECT_GE(error_by_matrices(other, 15, workload), least * (1 - 1e-9)) << i;
    }
  }
}

// More memory is no worse; two buffers come near to what any lower triangular Toeplitz matrix reaches.
TEST(BltCoefficients, GetBetterWithMoreBuffers) {
  const BandWorkload sums = prefix_sums(120);
  double before = dp::blt_error_and_slopes({{0.0}, {0.5}}, 20, sums).error;
  for (int64_t buffers = 1; buffers <= 3; ++buffers) {
    const double error = dp::blt_error_and_slopes(dp::optimal_blt(buffers, 20, sums), 20, sums).error;
    EXPECT_LE(error, before * (1 + 1e-9)) << buffers;
    before = error;
  }
}

TEST(BltCoefficients, OfALongRunAreFound) {
  const auto found = dp::optimal_blt(1, 50, prefix_sums(3000));
  EXPECT_GT(found.outputs[0], 0);
  EXPECT_LT(found.decays[0], 1);
}

TEST(BltCoefficients, RefuseAnImpossibleWorkload) {
  for (const int64_t buffers : {0, 17})
    EXPECT_THROW((void)dp::optimal_blt(buffers, 3, prefix_sums(3)), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_blt(2, 0, prefix_sums(3)), std::invalid_argument);
  EXPECT_THROW((void)dp::blt_error_and_slopes({{0.1}, {0.1, 0.2}}, 3, prefix_sums(3)), std::invalid_argument);
  EXPECT_THROW((void)dp::optimal_blt(2, 3, {.rates = {1, 0}, .momentum = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
