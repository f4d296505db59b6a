#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "accountant/accountant.h"

namespace ghostshard::accountant {
namespace {

EpsilonBound epsilon_of(const std::vector<Charge>& charges, double delta, const char* engine = "contour",
                        Adjacency adjacency = Adjacency::kZeroOut) {
  auto accountant = make_accountant(engine, adjacency);
  for (const Charge& charge : charges) accountant->compose(charge.event, charge.count);
  return accountant->epsilon(Delta(delta));
}

// Exact: n independent random responses, of which k reveal +e and the others -e.
double responses_delta(int n, double e, double epsilon) {
  const double p = 1 / (1 + std::exp(-e));
  double sum = 0;
  for (int k = 0; k <= n; ++k) {
    const double loss = e * (2 * k - n);
    const double log_p =
        std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) + k * std::log(p) + (n - k) * std::log1p(-p);
    if (loss > epsilon) sum += std::exp(log_p) * -std::expm1(epsilon - loss);
  }
  return sum;
}

TEST(Tables, ManyRandomResponsesAreTheBinomialSum) {
  const EpsilonBound bound = epsilon_of({{EpsilonDeltaEvent{Epsilon(0.1), Probability(0)}, 100}}, 1e-6);
  EXPECT_LE(responses_delta(100, 0.1, bound.upper), 1e-6 * (1 + 1e-9));
  EXPECT_GE(responses_delta(100, 0.1, bound.lower), 1e-6 * (1 - 1e-9));
  EXPECT_LT(bound.upper - bound.lower, 1e-3);
}

TEST(Tables, AUsersTableOfARandomResponseIsThatResponse) {
  const double p = 1 / (1 + std::exp(-0.1));
  const EpsilonBound bound = epsilon_of({{LossTableEvent{{0.1, -0.1}, {p, 1 - p}, Probability(0)}, 100}}, 1e-6);
  EXPECT_LE(responses_delta(100, 0.1, bound.upper), 1e-6 * (1 + 1e-9));
  EXPECT_GE(responses_delta(100, 0.1, bound.lower), 1e-6 * (1 - 1e-6));
}

// The line engine has no part in tables, the grid none in lines.
TEST(Tables, AGroupOfOneIsThePoissonSampledGaussian) {
  const SamplingRate q(0.01);
  const NoiseMultiplier sigma(1);
  const EpsilonBound line = epsilon_of({{PoissonGaussianEvent{q, sigma}, 1000}}, 1e-5);
  const EpsilonBound table = epsilon_of({{GroupPoissonGaussianEvent{1, q, sigma}, 1000}}, 1e-5);
  EXPECT_LE(table.lower, line.upper);
  EXPECT_GE(table.upper, line.lower);
  EXPECT_LT(table.upper - table.lower, 1e-4);
  const EpsilonBound mixture = epsilon_of({{MixtureOfGaussiansEvent{sigma, {0, 1}, {0.99, 0.01}}, 1000}}, 1e-5);
  EXPECT_LE(mixture.lower, line.upper);
  EXPECT_GE(mixture.upper, line.lower);
}

TEST(Tables, SamplingWithoutReplacementIsFarTighterThanItsRenyiBound) {
  const Event event = FixedSizeGaussianEvent{60000, 256, NoiseMultiplier(4)};
  const EpsilonBound table = epsilon_of({{event, 2000}}, 1e-5, "contour", Adjacency::kReplaceOne);
  const EpsilonBound renyi = epsilon_of({{event, 2000}}, 1e-5, "rdp", Adjacency::kReplaceOne);
  EXPECT_LT(table.upper - table.lower, 1e-3);
  EXPECT_LT(table.upper, 0.9 * renyi.upper);
}

TEST(Tables, PoissonUnderReplaceOneIsDpAccountings) {
  // dp_accounting 0.6.0, PLDAccountant with an interval of 1e-4, from above: 1.41285.
  const EpsilonBound bound =
      epsilon_of({{PoissonGaussianEvent{SamplingRate(256.0 / 60000), NoiseMultiplier(1.1)}, 2000}}, 1e-5, "contour",
                 Adjacency::kReplaceOne);
  EXPECT_LE(bound.lower, 1.4128507516515556);
  EXPECT_NEAR(bound.upper, 1.4128, 1e-4);
}

// dp_accounting 0.6.0 with an interval of 1e-4, from above.
TEST(Tables, AgreeWithDpAccounting) {
  const SamplingRate all(1);
  struct Row {
    Event event;
    int64_t count;
    double theirs;
  };
  for (const Row& row :
       {Row{LaplaceEvent{all, NoiseMultiplier(1)}, 10, 9.989962316985146},
        Row{LaplaceEvent{SamplingRate(0.01), NoiseMultiplier(1)}, 100, 0.3304771346348717},
        Row{DiscreteGaussianEvent{all, NoiseMultiplier(2), 1}, 10, 7.495253657963869},
        Row{DiscreteLaplaceEvent{all, NoiseParameter(0.5), 2}, 10, 9.998854120412483},
        Row{GroupPoissonGaussianEvent{4, SamplingRate(0.01), NoiseMultiplier(1.1)}, 200, 3.3349857351983117}}) {
    const EpsilonBound ours = epsilon_of({{row.event, row.count}}, 1e-5);
    EXPECT_LE(ours.lower, row.theirs * (1 + 1e-6));
    EXPECT_NEAR(ours.upper, row.theirs, 1e-4);
  }
}

TEST(Tables, AMechanismBesideARunCostsMoreThanTheRunAndLessThanBothAlone) {
  const Charge run{PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(1)}, 1000};
  const Charge vocabulary{EpsilonDeltaEvent{Epsilon(0.5), Probability(1e-7)}, 1};
  const double alone = epsilon_of({run}, 1e-5).upper;
  const double both = epsilon_of({run, vocabulary}, 1e-5).lower;
  EXPECT_GT(both, alone);
  EXPECT_LT(both, alone + 0.5);
}

TEST(Tables, AnInfiniteLossLikelierThanDeltaHasNoBound) {
  for (const char* engine : {"contour", "prv", "rdp"})
    EXPECT_EQ(epsilon_of({{EpsilonDeltaEvent{Epsilon(0.5), Probability(1e-4)}, 1}}, 1e-5, engine).upper,
              std::numeric_limits<double>::infinity())
        << engine;
}

// One conversion for each release would cost 3.2 more.
TEST(Tables, ManyZcdpReleasesCostWhatTheirMomentsCost) {
  const Event event = ZcdpEvent{Rho(0.1), Rho(0)};
  const EpsilonBound ten = epsilon_of({{event, 10}}, 1e-5);
  const EpsilonBound renyi = epsilon_of({{event, 10}}, 1e-5, "rdp");
  EXPECT_LE(ten.upper, renyi.upper);
  EXPECT_EQ(ten.lower, 0);
  const EpsilonBound gaussian = epsilon_of({{GaussianEvent{NoiseMultiplier(std::sqrt(0.5))}, 1}}, 1e-5);
  EXPECT_GE(renyi.upper, gaussian.lower);  // which is 1-zCDP
}

TEST(Tables, WhatHasNoPairUnderReplaceOneIsRefused) {
  for (const Event& event : {Event(LaplaceEvent{SamplingRate(0.5), NoiseMultiplier(1)}),
                             Event(GroupPoissonGaussianEvent{2, SamplingRate(0.5), NoiseMultiplier(1)})})
    EXPECT_THAT([&] { make_accountant("contour", Adjacency::kReplaceOne)->compose(event, 1); },
                testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("under replace-one adjacency")));
}

}  // namespace
}  // namespace ghostshard::accountant
