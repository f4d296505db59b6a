#include "accountant/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ghostshard::accountant {
namespace {

struct Training {
  const char* name;
  double q;
  int64_t steps;
  double delta, epsilon;
  double sigma_at_opacus_orders;  // 0 where these orders cannot reach the target
  double true_sigma;
};

void PrintTo(const Training& run, std::ostream* out) { *out << run.name; }

double upper(const Training& run, double sigma) {
  const auto engine = make_accountant("rdp", Adjacency::kZeroOut);
  engine->compose(PoissonGaussianEvent{SamplingRate(run.q), NoiseMultiplier(sigma)}, run.steps);
  return engine->epsilon(Delta(run.delta)).upper;
}

class Calibration : public testing::TestWithParam<Training> {
 protected:
  double sigma() const {
    const Training& run = GetParam();
    return calibrate_noise("rdp", Adjacency::kZeroOut, Epsilon(run.epsilon), Delta(run.delta), SamplingRate(run.q),
                           run.steps)
        .value();
  }
};

TEST_P(Calibration, MeetsTheTarget) { EXPECT_LE(upper(GetParam(), sigma()), GetParam().epsilon); }

TEST_P(Calibration, AMillionthLessNoiseDoesNot) {
  EXPECT_GT(upper(GetParam(), sigma() * (1 - 1e-6)), GetParam().epsilon);
}

TEST_P(Calibration, LiesBetweenTheTrueSigmaAndThatOfOpacusOrders) {
  EXPECT_GT(sigma(), GetParam().true_sigma);
  if (GetParam().sigma_at_opacus_orders > 0) {
    // Continuous orders gain up to 1e-3 in epsilon at these targets, and sigma moves no more than epsilon, relatively.
    EXPECT_LE(sigma(), GetParam().sigma_at_opacus_orders * (1 + 1e-6));
    EXPECT_GT(sigma(), GetParam().sigma_at_opacus_orders * (1 - 1e-3));
  } else {
    EXPECT_LT(sigma(), GetParam().true_sigma * 1.15);  // Renyi's conversion costs 10% at these epsilons
  }
}

INSTANTIATE_TEST_SUITE_P(
    Oracle, Calibration,
    testing::Values(Training{"E2eDelta8eMinus6", 1024.0 / 42061, 411, 8e-6, 3, 1.0886325321326666, 1.0269848447981218},
                    Training{"E2eDeltaHalfOverN", 1024.0 / 42061, 411, 1.0 / (2 * 42061), 3, 1.075257607839328,
                             1.013207003049001},
                    Training{"E2eOneStepLess", 1024.0 / 42061, 410, 8e-6, 3, 1.0880418578247524, 1.0264054281191697},
                    Training{"E2eOneStepLessDeltaHalfOverN", 1024.0 / 42061, 410, 1.0 / (2 * 42061), 3,
                             1.0746773046818863, 1.0126382563325462},
                    Training{"TenThousandSteps", 0.01, 10000, 1e-5, 3, 1.6618560893394978, 1.5649655354613965},
                    Training{"SmallEpsilonBeyondOpacusOrders", 0.01, 1000, 1e-5, 0.1, 0, 9.79679108052719},
                    Training{"OpacusTest2000Steps", 0.04, 2000, 1e-5, 8, 1.3561342171694832, 1.2899678072761658},
                    Training{"OpacusTest2250Steps", 0.04, 2250, 1e-5, 8, 1.415787143091157, 1.3458983293793716},
                    Training{"EpsilonOne", 0.01, 1000, 1e-5, 1, 1.5131221626019418, 1.4146194065286766}),
    [](const auto& c) { return c.param.name; });

// ---------------------------------------------------------------------------------------------------------------------
// By the contour accountant: the true sigma

class TrueCalibration : public testing::TestWithParam<Training> {};

// The true sigmas carry 16 digits; the result is rounded up by at most 1e-7.
TEST_P(TrueCalibration, FindsTheTrueSigmaFromThePrivateSide) {
  const Training& run = GetParam();
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(run.epsilon), Delta(run.delta)};
  const double sigma = calibrate_noise(budget, SamplingRate(run.q), run.steps).value();
  EXPECT_NEAR(sigma, run.true_sigma, 1e-6);
  EXPECT_GE(sigma, run.true_sigma * (1 - 1e-11));
  const auto engine = make_accountant("contour", Adjacency::kZeroOut);
  engine->compose(PoissonGaussianEvent{SamplingRate(run.q), NoiseMultiplier(sigma)}, run.steps);
  EXPECT_LE(engine->epsilon(Delta(run.delta)).upper, run.epsilon);
}

TEST_P(TrueCalibration, RateAndStepsLeadBack) {
  const Training& run = GetParam();
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(run.epsilon), Delta(run.delta)};
  const NoiseMultiplier sigma(run.true_sigma * (1 + 1e-9));
  EXPECT_EQ(calibrate_steps(budget, SamplingRate(run.q), sigma), run.steps);
  const double q = calibrate_sampling_rate(budget, sigma, run.steps).value();
  EXPECT_NEAR(q / run.q, 1, 2e-7);
}

INSTANTIATE_TEST_SUITE_P(
    Oracle, TrueCalibration,
    testing::Values(Training{"E2eDelta8eMinus6", 1024.0 / 42061, 411, 8e-6, 3, 0, 1.0269848447981218},
                    Training{"E2eDeltaHalfOverN", 1024.0 / 42061, 411, 1.0 / (2 * 42061), 3, 0, 1.013207003049001},
                    Training{"E2eOneStepLess", 1024.0 / 42061, 410, 8e-6, 3, 0, 1.0264054281191697},
                    Training{"TenThousandSteps", 0.01, 10000, 1e-5, 3, 0, 1.5649655354613965},
                    Training{"SmallEpsilon", 0.01, 1000, 1e-5, 0.1, 0, 9.79679108052719},
                    Training{"OpacusTest2000Steps", 0.04, 2000, 1e-5, 8, 0, 1.2899678072761658},
                    Training{"OpacusTest2250Steps", 0.04, 2250, 1e-5, 8, 0, 1.3458983293793716},
                    Training{"EpsilonOne", 0.01, 1000, 1e-5, 1, 0, 1.4146194065286766}),
    [](const auto& c) { return c.param.name; });

struct Calibrated {
  const char* name;
  double q;
  int64_t steps;
  double delta, epsilon;
};

void PrintTo(const Calibrated& run, std::ostream* out) { *out << run.name; }

class CalibrationRange : public testing::TestWithParam<Calibrated> {};

// A millionth less noise must exceed the target: sigma is the least one to 1e-6.
TEST_P(CalibrationRange, TheLeastSigmaThatMeetsTheTarget) {
  const Calibrated& run = GetParam();
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(run.epsilon), Delta(run.delta)};
  const double sigma = calibrate_noise(budget, SamplingRate(run.q), run.steps).value();
  const auto bound = [&](double at) {
    const auto engine = make_accountant("contour", Adjacency::kZeroOut);
    engine->compose(PoissonGaussianEvent{SamplingRate(run.q), NoiseMultiplier(at)}, run.steps);
    return engine->epsilon(Delta(run.delta));
  };
  EXPECT_LE(bound(sigma).upper, run.epsilon);
  EXPECT_GT(bound(sigma * (1 - 1e-6)).lower, run.epsilon);
}

INSTANTIATE_TEST_SUITE_P(
    Corners, CalibrationRange,
    testing::Values(Calibrated{"SmallEpsilon", 0.01, 1000, 1e-5, 0.01},
                    Calibrated{"HugeEpsilon", 0.01, 10000, 1e-6, 1000}, Calibrated{"LargeDelta", 0.05, 2000, 1e-3, 2},
                    Calibrated{"TinyDelta", 0.02, 5000, 1e-30, 4}, Calibrated{"TinyRate", 1e-5, 10000000, 1e-9, 1},
                    // Where each unit is drawn once, and hardly ever.
                    Calibrated{"OneVisit", 1e-7, 10000000, 1e-9, 1}, Calibrated{"RareVisit", 1e-6, 100000, 1e-8, 0.5},
                    Calibrated{"RareVisitLargeEpsilon", 1e-7, 1000000, 1e-12, 8},
                    Calibrated{"RareVisitFewSteps", 1e-6, 1000, 1e-9, 1}, Calibrated{"FewSteps", 1e-3, 3, 1e-6, 0.1},
                    Calibrated{"NoSampling", 1, 1000, 1e-6, 5}, Calibrated{"OneStep", 0.1, 1, 1e-6, 1}),
    [](const auto& c) { return c.param.name; });

TEST(CalibrateSteps, NoneWhereOneIsTooMany) {
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(0.1), Delta(1e-6)};
  EXPECT_EQ(calibrate_steps(budget, SamplingRate(1), NoiseMultiplier(1)), 0);
}

TEST(CalibrateSamplingRate, OneWhereNoSamplingIsNeeded) {
  const Budget budget{"contour", Adjacency::kZeroOut, Epsilon(10), Delta(1e-6)};
  EXPECT_EQ(calibrate_sampling_rate(budget, NoiseMultiplier(5), 1).value(), 1);
}

TEST(CalibrateSamplingRate, SaysWhatIsReachableWhereTheTargetIsNot) {
  const Budget budget{"rdp", Adjacency::kZeroOut, Epsilon(1e-12), Delta(1e-30)};
  EXPECT_THROW((void)calibrate_sampling_rate(budget, NoiseMultiplier(0.02), int64_t{1} << 40), std::invalid_argument);
}

TEST(CalibrateNoise, OffersNoLessThanTheSmallestSigma) {
  const auto sigma =
      calibrate_noise("rdp", Adjacency::kZeroOut, Epsilon(1e9), Delta(1e-5), SamplingRate(0.01), 10).value();
  EXPECT_EQ(sigma, 0.01);
}

TEST(CalibrateNoise, SaysWhatIsReachableWhereTheTargetIsNot) {
  EXPECT_THAT(
      [] {
        (void)calibrate_noise("rdp", Adjacency::kZeroOut, Epsilon(1e-6), Delta(1e-9), SamplingRate(1),
                              int64_t{1} << 40);
      },
      testing::ThrowsMessage<std::invalid_argument>(
          testing::AllOf(testing::HasSubstr("target epsilon must be reachable with a noise multiplier <= 1e+06"),
                         testing::HasSubstr("the target is 1e-06"))));
}

TEST(CalibrateNoise, RefusesARunWithoutSteps) {
  EXPECT_THAT([] { (void)calibrate_noise("rdp", Adjacency::kZeroOut, Epsilon(1), Delta(1e-5), SamplingRate(0.1), 0); },
              testing::ThrowsMessage<std::invalid_argument>("steps must be > 0, got 0"));
}

TEST(CalibrateNoise, RefusesAnUnknownAccountant) {
  EXPECT_THROW((void)calibrate_noise("none", Adjacency::kZeroOut, Epsilon(1), Delta(1e-5), SamplingRate(0.1), 1),
               std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::accountant
