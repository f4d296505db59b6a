// Deltas too small for a double: no upper end of what is positive is 0, and no lower end lies above it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "accountant/accountant.h"
#include "accountant/events.h"
#include "accountant/gaussian/single_release.h"
#include "accountant/gaussian/truncated_poisson.h"

namespace ghostshard::accountant {
namespace {

struct Unbounded {  // runs whose losses have no largest one
  const char* name;
  std::vector<std::pair<Event, int64_t>> run;
};
void PrintTo(const Unbounded& c, std::ostream* out) { *out << c.name; }

Event poisson(double q, double sigma) { return PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}; }
Event gaussian(double sigma) { return GaussianEvent{NoiseMultiplier(sigma)}; }

std::vector<Unbounded> runs() {
  const Event tuning = event_from_json(nlohmann::json::parse(
      R"({"type":"tuning_poisson","mean":3,"run":[{"count":10,"event":
          {"type":"poisson_gaussian","sampling_rate":0.01,"noise_multiplier":1}}]})"));
  std::vector<std::pair<Event, int64_t>> schedule;
  for (int i = 0; i < 40; ++i) schedule.emplace_back(poisson(0.01, 5 + 0.1 * i), 3);
  return {{"OneGaussian", {{gaussian(1), 1}}},
          {"Gaussians", {{gaussian(1), 1}, {gaussian(3), 5}}},
          {"OneSampled", {{poisson(0.01, 1), 1}}},
          {"Sampled", {{poisson(0.01, 1), 100}}},
          {"TwoPhases", {{poisson(0.01, 1), 20}, {poisson(0.02, 2), 10}}},
          {"Schedule", schedule},
          {"Truncated", {{TruncatedPoissonGaussianEvent{1000, SamplingRate(1e-3), 900, NoiseMultiplier(1)}, 2}}},
          {"Zcdp", {{ZcdpEvent{Rho(1e-6), Rho(0)}, 1}}},
          {"DiscreteGaussian", {{DiscreteGaussianEvent{SamplingRate(0.1), NoiseMultiplier(2), 1}, 2}}},
          {"Group", {{GroupPoissonGaussianEvent{2, SamplingRate(0.01), NoiseMultiplier(1)}, 2}}},
          {"Tuning", {{tuning, 1}}},
          {"BallsInBins", {{BallsInBinsGaussianEvent{21, NoiseMultiplier(0.62)}, 3}}}};
}

class LeastDouble : public testing::TestWithParam<Unbounded> {};

TEST_P(LeastDouble, NoUpperEndOfDeltaIsZero) {
  for (const char* name : {"contour", "prv", "rdp"})
    for (const double epsilon : {60.0, 5000.0}) {
      const auto engine = make_accountant(name, Adjacency::kZeroOut);
      for (const auto& [event, count] : GetParam().run) engine->compose(event, count);
      const DeltaBound found = engine->delta(Epsilon(epsilon), Effort::kQuick);
      EXPECT_GT(found.upper, 0) << name << " at " << epsilon;
      EXPECT_LE(found.lower, found.estimate) << name << " at " << epsilon;
      EXPECT_LE(found.estimate, found.upper) << name << " at " << epsilon;
    }
}
INSTANTIATE_TEST_SUITE_P(, LeastDouble, testing::ValuesIn(runs()), [](const auto& c) { return c.param.name; });

// delta of the Gaussian at sigma = 1 and epsilon = 38.2, about 5e-320: its logarithm by Mills' ratio, a dozen digits
// of it. A double there has steps of 5e-324.
TEST(LeastDoubleOfOneGaussian, IsInsideItsBracket) {
  for (double epsilon = 36; epsilon < 40; epsilon += 0.05) {
    const double a = epsilon - 0.5;
    const double b = epsilon + 0.5;
    const long double exact = std::exp(static_cast<long double>(log_upper_tail(a))) -
                              std::exp(epsilon + static_cast<long double>(log_upper_tail(b)));
    for (const Direction direction : {Direction::kRemove, Direction::kAdd}) {
      const Bracket found = single_release_delta(direction, {1, 1}, epsilon);
      EXPECT_LE(found.lower, exact * (1 + 1e-11L)) << epsilon;
      EXPECT_GE(found.upper, exact * (1 - 1e-11L)) << epsilon;
      EXPECT_GT(found.upper, 0) << epsilon;
    }
  }
}

// Just below the largest loss, -log(1 - q), w = e^-eps - 1 + q has no digits left, and delta is positive.
TEST(LeastDoubleOfOneSampled, IsNotNothingBelowTheLargestLoss) {
  for (const double q : {0.3, 0.5, 0.75, 1 - 0x1p-20}) {
    const double largest = -std::log1p(-q);
    const double below = std::nextafter(std::nextafter(largest * (1 - 1e-16), 0), 0);
    for (const double sigma : {0.3, 1.0, 5.0}) {
      const Bracket found = single_release_delta(Direction::kAdd, {q, sigma}, below);
      EXPECT_GT(found.upper, 0) << q << ", " << sigma;
      EXPECT_LE(found.lower, found.upper);
      EXPECT_LE(found.upper, 1e-14) << q << ", " << sigma;  // 1 - e^eps(1 - q) is some roundings of 1
      EXPECT_EQ(single_release_delta(Direction::kAdd, {q, sigma}, largest * 1.001).upper, 0);
    }
  }
}

// epsilon at deltas of few digits or none: every engine answers above what one release costs, by its logarithms.
TEST(LeastDoubleOfDelta, GivesAnEpsilonThatIsLargeEnough) {
  for (const double delta : {5e-324, 1e-322, 1e-320, 1e-310, 1e-300}) {
    // delta(eps) of sigma = 1 is above e^(log_upper_tail(eps - 1/2) - 3) where eps > 30: by Mills' ratio it is the tail
    // over some eps.
    double epsilon = 30;
    while (log_upper_tail(epsilon - 0.5) - std::log(2 * epsilon) > std::log(delta)) epsilon += 0.01;
    for (const char* name : {"contour", "prv", "rdp"}) {
      const auto engine = make_accountant(name, Adjacency::kZeroOut);
      engine->compose(gaussian(1), 1);
      const EpsilonBound found = engine->epsilon(Delta(delta));
      EXPECT_GE(found.upper, epsilon - 0.02) << name << " at " << delta;
      EXPECT_LE(found.upper, 1.02 * epsilon) << name << " at " << delta;
      EXPECT_LE(found.lower, epsilon + 0.2) << name << " at " << delta;
    }
  }
}

TEST(LeastDoubleOfTruncation, NoTailIsZero) {
  EXPECT_GT(binomial_tail(1000, 1e-3, 990).upper, 0);
  EXPECT_GT(binomial_tail(int64_t{1} << 52, 0.25, int64_t{1} << 51).upper, 0);  // by Chernoff
  EXPECT_EQ(binomial_tail(1000, 1e-3, 1001).upper, 0);
}

// Of 1000 units more than 200 are drawn with probability e^-887 or so, which e^700 makes e^-187.
TEST(LeastDoubleOfTruncation, WhatItAddsIsAddedHoweverRareItIs) {
  const auto engine = make_accountant("prv", Adjacency::kZeroOut);
  engine->compose(TruncatedPoissonGaussianEvent{1000, SamplingRate(1e-3), 200, NoiseMultiplier(1)}, 1);
  EXPECT_GE(engine->delta(Epsilon(700)).upper, std::exp(-200.0));
}

}  // namespace
}  // namespace ghostshard::accountant
