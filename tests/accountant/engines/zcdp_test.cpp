// A run's rho against Rényi divergences that are known or summed up here.
#include "accountant/zcdp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "accountant/engines/rdp.h"

namespace ghostshard::accountant {
namespace {

using Releases = std::vector<std::pair<Event, int64_t>>;

double rho_of(const Releases& run, Adjacency adjacency = Adjacency::kZeroOut,
              std::optional<double> omega = std::nullopt) {
  return concentrated_bound(run, adjacency, omega).rho;
}

// log E_Q[(P/Q)^alpha]/(alpha - 1) of the sampled Gaussian, by the trapezoid rule in long double.
long double sampled_divergence(double q, double sigma, double alpha) {
  long double sum = 0;
  const long double step = 1e-2L;
  for (long double x = -13 * sigma; x < 13 * sigma + alpha + 1; x += step) {
    const long double w = 1 - q + q * std::exp((2 * x - 1) / (2 * sigma * sigma));
    sum += step * std::exp(-x * x / (2 * sigma * sigma) + alpha * std::log(w));
  }
  return std::log(sum / (sigma * std::sqrt(2 * std::acos(-1.0L)))) / (alpha - 1);
}

TEST(Zcdp, GaussiansAddUp) {
  const Releases run = {{GaussianEvent{NoiseMultiplier(2)}, 10}, {GaussianEvent{NoiseMultiplier(5)}, 3}};
  const double exact = 10 / 8.0 + 3 / 50.0;
  EXPECT_GE(rho_of(run), exact);
  EXPECT_LE(rho_of(run), exact * (1 + 1e-13));
  EXPECT_GE(rho_of(run, Adjacency::kReplaceOne), 4 * exact);
  EXPECT_LE(rho_of(run, Adjacency::kReplaceOne), 4 * exact * (1 + 1e-13));
}

TEST(Zcdp, OmegaMakesNoDifferenceToGaussians) {
  const ConcentratedBound found =
      concentrated_bound(Releases{{GaussianEvent{NoiseMultiplier(2)}, 10}}, Adjacency::kZeroOut, 8);
  EXPECT_TRUE(std::isinf(found.omega));
  EXPECT_NEAR(found.rho, 1.25, 1e-12);
}

TEST(Zcdp, OneGaussianCostsWhatItsRhoCosts) {
  for (const Adjacency adjacency : {Adjacency::kZeroOut, Adjacency::kReplaceOne}) {
    const Event event = GaussianEvent{NoiseMultiplier(3)};
    const double rho = rho_of({{event, 1}}, adjacency);
    for (const double c : {0.1, 1.0, 20.0})
      EXPECT_GE(c * (1 + c) * rho * (1 + 1e-12), rdp_log_moment(event, c, adjacency)) << c;
  }
}

TEST(Zcdp, SamplingIsNotCountedForAllOrders) {
  const double alone = rho_of({{GaussianEvent{NoiseMultiplier(2)}, 7}});
  EXPECT_EQ(rho_of({{PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(2)}, 7}}), alone);
  EXPECT_THAT(concentrated_bound(Releases{{PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(2)}, 7}},
                                 Adjacency::kZeroOut)
                  .detail,
              testing::HasSubstr("not counted"));
}

TEST(Zcdp, BelowOmegaItIsTheLeastRho) {
  for (const auto& [q, sigma] : {std::pair{0.01, 1.0}, {0.1, 3.0}, {0.3, 0.8}})
    for (const double omega : {1.5, 4.0, 12.0}) {
      const ConcentratedBound found = concentrated_bound(
          Releases{{PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}, 5}}, Adjacency::kZeroOut, omega);
      EXPECT_EQ(found.omega, omega);
      long double most = 0;
      for (int i = 1; i <= 60; ++i) {
        const double alpha = 1 + (omega - 1) * i / 60;
        const long double exact = 5 * sampled_divergence(q, sigma, alpha);
        EXPECT_GE(found.rho * alpha * (1 + 1e-9L), exact) << q << ' ' << omega << ' ' << alpha;
        most = std::max(most, exact / alpha);
      }
      EXPECT_LE(found.rho, most * (1 + 2e-2L)) << q << ' ' << omega;
    }
}

TEST(Zcdp, AChordBetweenOrdersIsAboveWhatLiesThere) {  // where the divergence rises steeply
  const Event event = PoissonGaussianEvent{SamplingRate(1e-4), NoiseMultiplier(0.5)};
  const double rho = rho_of({{event, 1}}, Adjacency::kZeroOut, 6.0);
  for (double c = 1e-5; c < 5; c *= 1.013) EXPECT_GE(rho * c * (1 + c) * (1 + 1e-12), rdp_log_moment(event, c)) << c;
}

// The exponential mechanism's table is an envelope of many mechanisms, and may have more.
TEST(Zcdp, PureMechanismsHaveTheirRho) {
  EXPECT_NEAR(rho_of({{LaplaceEvent{SamplingRate(1), NoiseMultiplier(2)}, 3}}), 3 * 0.125, 1e-12);
  EXPECT_NEAR(rho_of({{ExponentialMechanismEvent{Epsilon(1)}, 1}}), 0.125, 1e-12);
  for (const Event& event :
       {Event(LaplaceEvent{SamplingRate(1), NoiseMultiplier(2)}),
        Event(LaplaceEvent{SamplingRate(0.1), NoiseMultiplier(2)}),
        Event(EpsilonDeltaEvent{Epsilon(1.5), Probability(0)}),
        Event(DiscreteLaplaceEvent{SamplingRate(1), NoiseParameter(0.3), 3}),
        Event(DiscreteGaussianEvent{SamplingRate(1), NoiseMultiplier(2), 3}),
        Event(GroupPoissonGaussianEvent{3, SamplingRate(0.1), NoiseMultiplier(2)}),
        Event(MixtureOfGaussiansEvent{NoiseMultiplier(2), {0, 1, 2}, {0.5, 0.25, 0.25}}),
        Event(TruncatedPoissonGaussianEvent{100, SamplingRate(0.1), 12, NoiseMultiplier(2)}),
        Event(TreeAggregationEvent{100, NoiseMultiplier(2)}), Event(BallsInBinsGaussianEvent{10, NoiseMultiplier(2)}),
        Event(AdaptiveClippingEvent{SamplingRate(1), NoiseMultiplier(1), NoiseMultiplier(1)})}) {
    const double rho = rho_of({{event, 1}});
    for (const double c : {0.05, 0.5, 3.0, 15.0})
      EXPECT_GE(c * (1 + c) * rho * (1 + 1e-6), rdp_log_moment(event, c)) << type_name(event) << ' ' << c;
    EXPECT_LE(rho_of({{event, 1}}, Adjacency::kZeroOut, 5.0), rho * (1 + 1e-12)) << type_name(event);
  }
}

TEST(Zcdp, StatedXiStaysApart) {
  const Releases run = {{ZcdpEvent{Rho(0.1), Rho(0.02)}, 3}, {GaussianEvent{NoiseMultiplier(1)}, 1}};
  for (const std::optional<double> omega : {std::optional<double>(), std::optional<double>(4.0)}) {
    const ConcentratedBound found = concentrated_bound(run, Adjacency::kZeroOut, omega);
    EXPECT_NEAR(found.rho, 0.8, 1e-12);
    EXPECT_NEAR(found.xi, 0.06, 1e-12);
  }
}

TEST(Zcdp, WhatHasNoneIsRefused) {
  const auto refused = [](const Event& event, std::optional<double> omega, const char* words) {
    EXPECT_THAT(
        [&] {
          rho_of({{event, 1}}, Adjacency::kZeroOut, omega);
        },
        testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr(words)));
  };
  refused(EpsilonDeltaEvent{Epsilon(1), Probability(1e-6)}, std::nullopt, "epsilon_delta has none");
  refused(EpsilonDeltaEvent{Epsilon(1), Probability(1e-6)}, 4.0, "epsilon_delta has none");
  refused(TuningPoissonEvent{RepeatMean(3), {{GaussianEvent{NoiseMultiplier(1)}, 1}}}, 4.0, "tuning_poisson has none");
  refused(FixedSizeGaussianEvent{100, 10, NoiseMultiplier(1)}, std::nullopt, "fixed_size_gaussian has none");
  refused(GaussianEvent{NoiseMultiplier(1)}, 1.0, "omega must be finite and > 1");
  refused(GaussianEvent{NoiseMultiplier(1)}, INFINITY, "omega must be finite and > 1");
}

}  // namespace
}  // namespace ghostshard::accountant
