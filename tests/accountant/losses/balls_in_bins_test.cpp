// Balls-in-bins sampling: the tables against the Gaussian, enumeration by chance, and the prototype's noise.
#include "accountant/losses/balls_in_bins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/calibration.h"

namespace ghostshard::accountant {
namespace {

BallsInBinsGaussianEvent pass(int64_t steps, double sigma) { return {steps, NoiseMultiplier(sigma)}; }

double delta_of(const LossAtoms& atoms, double epsilon) {
  double sum = atoms.infinite;
  for (size_t i = 0; i < atoms.loss.size(); ++i)
    if (atoms.loss[i] > epsilon) sum += atoms.mass[i] * -std::expm1(epsilon - atoms.loss[i]);
  return sum;
}

double normal_tail(double z) { return std::erfc(z / std::sqrt(2.0)) / 2; }
double gaussian_delta(double sigma, double epsilon) {
  const double half = 1 / (2 * sigma);
  return normal_tail(epsilon * sigma - half) - std::exp(epsilon) * normal_tail(epsilon * sigma + half);
}

EpsilonBound epsilon_of(const Event& event, int64_t count, double delta, const char* engine = "contour",
                        Adjacency adjacency = Adjacency::kZeroOut) {
  auto accountant = make_accountant(engine, adjacency);
  accountant->compose(event, count);
  return accountant->epsilon(Delta(delta));
}

TEST(BallsInBins, ATableOfOneStepIsTheGaussian) {
  for (const double sigma : {0.3, 1.0, 4.0, 100.0}) {
    const DominatingPair pair = balls_in_bins_pair(pass(1, sigma));
    for (const double epsilon : {0.0, 0.5 / sigma, 2 / sigma}) {
      const double truth = gaussian_delta(sigma, epsilon);
      for (const auto* direction : {&pair.remove, &pair.add}) {
        // The closed form is a difference: it errs by some roundings of its terms.
        EXPECT_GE(delta_of(direction->less_private, epsilon), truth - 1e-15);
        EXPECT_LE(delta_of(direction->more_private, epsilon), truth + 1e-15);
        // Cells a hundredth of a deviation wide: an error of their variance, 1e-5 of that of the loss, times the
        // curvature.
        EXPECT_NEAR(delta_of(direction->less_private, epsilon), delta_of(direction->more_private, epsilon),
                    1e-3 * truth);
      }
    }
  }
}

TEST(BallsInBins, APassOfOneStepIsChargedAsTheGaussian) {
  for (const Adjacency adjacency : {Adjacency::kZeroOut, Adjacency::kAddOrRemove, Adjacency::kReplaceOne})
    for (const char* engine : {"contour", "prv", "rdp"}) {
      const EpsilonBound bins = epsilon_of(pass(1, 1.5), 3, 1e-5, engine, adjacency);
      const EpsilonBound gaussian = epsilon_of(GaussianEvent{NoiseMultiplier(1.5)}, 3, 1e-5, engine, adjacency);
      EXPECT_EQ(bins.upper, gaussian.upper) << engine;
      EXPECT_EQ(bins.lower, gaussian.lower) << engine;
    }
}

// S drawn n times: a mean of n independent values in [0, 1] lies within sqrt(log(1/p)/(2n)) of the truth but for a
// probability of p on either side (Hoeffding). The seed is fixed, so that the test does not fail by chance.
TEST(BallsInBins, ManyStepsAgreeWithDraws) {
  constexpr int kDraws = 200'000;
  const double within = std::sqrt(std::log(1e9) / (2 * kDraws));
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  const int64_t steps = 20;
  const double sigma = 0.7;
  const double s = 1 / sigma;
  const DominatingPair pair = balls_in_bins_pair(pass(steps, sigma));
  const std::vector<double> epsilons = {0.0, 0.5, 1.0};
  std::vector<double> remove(epsilons.size()), add(epsilons.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    // The factor of the step that the unit is in has, under P, a mean of its logarithm of +s²/2.
    double others = 0;
    for (int64_t i = 1; i < steps; ++i) others += std::exp(s * normal(generator) - s * s / 2);
    const double z = normal(generator);
    const double with = (others + std::exp(s * z + s * s / 2)) / static_cast<double>(steps);
    const double without = (others + std::exp(s * z - s * s / 2)) / static_cast<double>(steps);
    for (size_t e = 0; e < epsilons.size(); ++e) {
      remove[e] += std::max(0.0, 1 - std::exp(epsilons[e]) / with) / kDraws;
      add[e] += std::max(0.0, 1 - std::exp(epsilons[e]) * without) / kDraws;
    }
  }
  for (size_t e = 0; e < epsilons.size(); ++e) {
    EXPECT_GE(delta_of(pair.remove.less_private, epsilons[e]), remove[e] - within);
    EXPECT_LE(delta_of(pair.remove.more_private, epsilons[e]), remove[e] + within);
    EXPECT_GE(delta_of(pair.add.less_private, epsilons[e]), add[e] - within);
    EXPECT_LE(delta_of(pair.add.more_private, epsilons[e]), add[e] + within);
  }
}

// Widths of brackets as they were measured, doubled: a table that is certified and useless would pass all else.
TEST(BallsInBins, BracketsAreNarrow) {
  for (const auto& [steps, sigma] : {std::pair<int64_t, double>{2, 1.0}, {21, 0.6}, {1000, 0.5}, {4095, 1.0}}) {
    const DominatingPair pair = balls_in_bins_pair(pass(steps, sigma));
    for (const auto* direction : {&pair.remove, &pair.add}) {
      const double upper = delta_of(direction->less_private, 0);
      EXPECT_NEAR(upper, delta_of(direction->more_private, 0), 8e-4 * upper) << steps;
      // The tail beyond the cells, at one end of one factor or at the other end of any.
      EXPECT_LT(direction->less_private.infinite,
                4 * static_cast<double>(std::max<int64_t>(steps, 2)) * normal_tail(10));
    }
    EXPECT_GE(pair.remove.less_private.infinite, normal_tail(10)) << "what lies beyond the cells";
  }
}

// Both passes of two in one are a release of the two, so that what is put together can only cost more.
TEST(BallsInBins, MoreStepsCostLess) {
  double before = epsilon_of(pass(1, 0.8), 3, 1e-6).upper;
  for (const int64_t steps : {2, 5, 21, 100}) {
    const EpsilonBound bound = epsilon_of(pass(steps, 0.8), 3, 1e-6);
    EXPECT_LT(bound.upper, before);
    EXPECT_LT(bound.upper - bound.lower, 3e-4 * bound.upper);
    before = bound.lower;
  }
}

TEST(BallsInBins, EnginesAgreeAndRenyiIsLooser) {
  const EpsilonBound contour = epsilon_of(pass(21, 0.62), 3, 1e-6);
  const EpsilonBound prv = epsilon_of(pass(21, 0.62), 3, 1e-6, "prv");
  const EpsilonBound rdp = epsilon_of(pass(21, 0.62), 3, 1e-6, "rdp");
  EXPECT_LE(contour.lower, prv.upper);
  EXPECT_LE(prv.lower, contour.upper);
  EXPECT_GE(rdp.upper, contour.lower);
  EXPECT_LT(rdp.upper, 1.2 * contour.upper);
}

TEST(BallsInBins, ComposesWithOtherReleases) {
  const Event beside = LaplaceEvent{SamplingRate(1), NoiseMultiplier(2)};
  auto both = make_accountant("contour", Adjacency::kZeroOut);
  both->compose(pass(21, 0.62), 3);
  const double alone = both->epsilon(Delta(1e-6)).lower;
  both->compose(beside, 1);
  EXPECT_GT(both->epsilon(Delta(1e-6)).upper, alone);
  EXPECT_LT(both->epsilon(Delta(1e-6)).upper, alone + 0.5 + 1e-2);  // Laplace noise of scale 2 is 1/2-DP
}

TEST(BallsInBins, ReplacingAUnitIsRefusedByName) {
  for (const char* engine : {"contour", "prv", "rdp"})
    EXPECT_THAT([&] { (void)epsilon_of(pass(2, 1), 1, 1e-6, engine, Adjacency::kReplaceOne); },
                testing::ThrowsMessage<std::invalid_argument>(
                    testing::AllOf(testing::HasSubstr("balls_in_bins_gaussian"), testing::HasSubstr("replace-one"))));
}

// A floating grid without a certificate found 1.768, 0.9655 and 0.62 for 3 passes of 21 steps; Poisson sampling needs
// 1.960, 1.047 and 0.684.
TEST(BallsInBins, NoiseForABudgetIsThePrototypes) {
  for (const auto& [epsilon, sigma] : {std::pair{1.0, 1.768}, {8.0, 0.6245}}) {
    const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(epsilon), Delta(1e-6)};
    const NoiseMultiplier found = calibrate_bins_noise(budget, 21, 3);
    EXPECT_NEAR(found.value(), sigma, 4e-4);
    EXPECT_LE(epsilon_of(pass(21, found.value()), 3, 1e-6).upper, epsilon);
    EXPECT_LT(found.value(), 0.93 * calibrate_noise(budget, SamplingRate(1.0 / 21), 63).value());
  }
}

TEST(BallsInBins, CalibrationRefusesWhatCannotBe) {
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(1e-6), Delta(1e-9)};
  EXPECT_THAT([&] { (void)calibrate_bins_noise(budget, 2, 1000); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("reachable")));
  EXPECT_THROW((void)calibrate_bins_noise(budget, 0, 1), std::invalid_argument);
  EXPECT_THROW((void)calibrate_bins_noise(budget, 2, 0), std::invalid_argument);
}

TEST(BallsInBins, LimitsAreNamed) {
  EXPECT_THROW((void)balls_in_bins_pair(pass(0, 1)), std::invalid_argument);
  EXPECT_THAT([] { (void)balls_in_bins_pair(pass(kMostBins + 1, 1)); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("100000")));
  EXPECT_THAT([] { (void)balls_in_bins_pair(pass(2, 0.01)); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("from 0.05 to 1000")));
}

}  // namespace
}  // namespace ghostshard::accountant
