// Factors of gradients: what errors of a known variance make of them, and their roots.
#include "fsdp/optimizer/factors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/fsdp/matrix_steps.h"

namespace ghostshard::fsdp {
namespace {

TEST(StepsThatCount, AreThoseOfTheWeightsThemselves) {
  for (const double beta : {0.0, 0.5, 0.999}) {
    for (const int64_t steps : {1, 2, 700}) {
      double sum = 0, squares = 0;
      for (int64_t s = 0; s < steps; ++s) {
        const double weight = std::pow(beta, static_cast<double>(s));
        sum += weight;
        squares += weight * weight;
      }
      EXPECT_NEAR(steps_that_count(beta, steps), sum * sum / squares, 1e-9 * static_cast<double>(steps));
    }
  }
}

// L of errors alone, averaged as the optimizers do.
struct ErrorsAlone {
  int64_t rows, columns, steps;
  double beta;
};
class ErrorFactors : public testing::TestWithParam<ErrorsAlone> {};
INSTANTIATE_TEST_SUITE_P(, ErrorFactors,
                         testing::Values(ErrorsAlone{32, 32, 1000, 0.999}, ErrorsAlone{24, 48, 800, 0.999},
                                         ErrorsAlone{48, 24, 20, 0.9}, ErrorsAlone{32, 16, 1, 0.999}),
                         [](const auto& test) {
                           return std::to_string(test.param.rows) + "x" + std::to_string(test.param.columns) + "_for_" +
                                  std::to_string(test.param.steps);
                         });

TEST_P(ErrorFactors, LieWithinTheirSpectrumAndAreNothingOnceTheKnownPartIsTakenOut) {
  const auto [rows, columns, steps, beta] = GetParam();
  constexpr double kF = 0.25;
  const auto generator = at::detail::createCPUGenerator(7);
  at::Tensor factor = at::zeros({rows, rows}, at::kDouble);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor g = at::randn({rows, columns}, generator, at::kDouble).mul_(std::sqrt(kF));
    factor.mul_(beta).add_(g.mm(g.t()), 1 - beta);
  }
  factor.div_(1 - std::pow(beta, static_cast<double>(steps)));
  const double n = steps_that_count(beta, steps);
  const ErrorSpectrum known = error_spectrum(kF, rows, columns, n);
  EXPECT_DOUBLE_EQ(known.mean, kF * static_cast<double>(columns));
  // The edges are those of many rows. The largest eigenvalue of few lies around them by
  // (1 + sqrt(y))^(4/3)·y^(1/3)·(c·n)^(-2/3) of the mean for y = r/(c·n) (Johnstone 2001): less than 0.6·sqrt(y) for 16
  // rows and more.
  const double y = static_cast<double>(rows) / (static_cast<double>(columns) * n);
  const double slack = 0.6 * std::sqrt(y) * known.mean;
  const at::Tensor values = at::linalg_eigvalsh(factor);
  EXPECT_LT(values.max().item<double>(), known.upper + slack);
  EXPECT_GT(values.min().item<double>(), known.lower - slack);
  EXPECT_GT(values.max().item<double>(), known.mean + 0.5 * (known.upper - known.mean)) << "an edge, not just a bound";

  const at::Tensor rest = at::linalg_eigvalsh(without(factor, known.mean));
  const double norm = rest.abs().max().item<double>() / known.mean;
  EXPECT_LT(norm, 2 * std::sqrt(y) + y + 0.6 * std::sqrt(y));
  EXPECT_TRUE(steps < 800 || norm < 0.1) << norm;
}

TEST(InverseFourthRoot, OfAFactorRaisedToTheFourthIsItsInverse) {
  const at::Tensor g = random({3, 12, 30}, 3, at::kDouble);
  const at::Tensor factor = g.matmul(g.transpose(-2, -1));
  const at::Tensor root = inverse_fourth_root(factor, 0);
  EXPECT_LT(
      distance(root.matmul(root).matmul(root).matmul(root).matmul(factor), at::eye(12, at::kDouble).expand_as(factor)),
      1e-10);
  // Raised to more than all of its eigenvalues it is a multiple of the identity.
  EXPECT_LT(distance(inverse_fourth_root(factor, 1e4), at::eye(12, at::kDouble).mul(0.1).expand_as(factor)), 1e-12);
  EXPECT_TRUE(at::isfinite(inverse_fourth_root(at::zeros({1, 4, 4}), 0)).all().item<bool>());
}

}  // namespace
}  // namespace ghostshard::fsdp
