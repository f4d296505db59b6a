// Tuning against the best of K runs of a small mechanism, whose distribution is enumerated.
#include "accountant/gaussian/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "accountant/accountant.h"
#include "accountant/gaussian/event_moment.h"

namespace ghostshard::accountant {
namespace {

using Distribution = std::vector<long double>;  // the outcomes in the order of their scores

// K's probability generating function, f(0) of no run at all.
struct Repeats {
  const char* name;
  bool poisson;
  double shape, parameter;  // gamma, or the mean

  long double generating(long double x) const {
    if (poisson) return std::exp(parameter * (x - 1));
    const long double u = (1 - static_cast<long double>(parameter)) * x;
    if (shape == 0) return std::log1p(-u) / std::log(static_cast<long double>(parameter));
    const long double h = shape;
    return std::expm1(-h * std::log1p(-u)) / std::expm1(-h * std::log(static_cast<long double>(parameter)));
  }
  Event of(std::vector<TunedRelease> run) const {
    if (poisson) return TuningPoissonEvent{RepeatMean(parameter), std::move(run)};
    return TuningNegativeBinomialEvent{RepeatShape(shape), RepeatGamma(parameter), std::move(run)};
  }
};
void PrintTo(const Repeats& c, std::ostream* out) { *out << c.name; }

// The best has a score of at most y if all have. If there is no run, an outcome of its own is released.
Distribution best_of(const Distribution& one, const Repeats& repeats) {
  Distribution best = {repeats.generating(0)};
  long double below = 0;
  for (const long double p : one) {
    const long double until = std::min(1.0L, below + p);
    best.push_back(repeats.generating(until) - repeats.generating(below));
    below = until;
  }
  return best;
}

long double delta_between(const Distribution& p, const Distribution& q, long double epsilon) {
  long double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::max(0.0L, p[i] - std::exp(epsilon) * q[i]);
  return sum;
}

long double log_moment_between(const Distribution& p, const Distribution& q, long double c) {
  std::vector<long double> exponents;
  for (size_t i = 0; i < p.size(); ++i)
    if (p[i] > 0) exponents.push_back(std::log(p[i]) + c * (std::log(p[i]) - std::log(q[i])));
  const long double top = *std::max_element(exponents.begin(), exponents.end());
  long double sum = 0;
  for (const long double exponent : exponents) sum += std::exp(exponent - top);
  return top + std::log(sum);
}

// Mechanisms of a known divergence on a few outcomes, the rarest of the best score.
struct Small {
  Event event;
  Distribution with, without;
};

// Probability `rare` of the best outcome becomes rare·e^epsilon; the worst one gets what is left: epsilon-DP for small
// `rare` if the worst one's ratio is checked, as here.
Small rare_best(double epsilon, long double rare) {
  const long double high = rare * std::exp(static_cast<long double>(epsilon));
  EXPECT_LT(std::log((1 - rare) / (1 - high)), epsilon);
  return {EpsilonDeltaEvent{Epsilon(epsilon), Probability(0)}, {1 - high, high}, {1 - rare, rare}};
}

// A Gaussian of sigma, of which only the interval between neighbouring thresholds is told (post-processing).
Small cut_gaussian(double sigma, int cuts) {
  const auto tail = [&](long double x) { return std::erfc(x / sigma / std::sqrt(2.0L)) / 2; };
  Small found{GaussianEvent{NoiseMultiplier(sigma)}, {}, {}};
  long double above[2] = {1, 1};
  for (int i = 0; i <= cuts; ++i) {
    const long double x = sigma * (-4 + 10.0L * i / cuts);
    const long double next[2] = {i < cuts ? tail(x - 1) : 0, i < cuts ? tail(x) : 0};
    found.with.push_back(above[0] - next[0]);
    found.without.push_back(above[1] - next[1]);
    above[0] = next[0];
    above[1] = next[1];
  }
  return found;
}

std::vector<Small> mechanisms() {
  std::vector<Small> all;
  for (const double epsilon : {0.3, 2.0})
    for (const long double rare : {1e-1L, 1e-3L, 1e-7L})
      if (rare * std::exp(static_cast<long double>(epsilon)) < 0.5L) all.push_back(rare_best(epsilon, rare));
  for (const double sigma : {0.7, 5.0}) all.push_back(cut_gaussian(sigma, 60));
  return all;
}

class Tuning : public testing::TestWithParam<Repeats> {};

TEST_P(Tuning, GeneratesADistribution) {
  const Repeats& repeats = GetParam();
  EXPECT_NEAR(static_cast<double>(repeats.generating(1)), 1, 1e-15);
  if (!repeats.poisson) {
    EXPECT_EQ(repeats.generating(0), 0);
  }
}

TEST_P(Tuning, TheMomentIsBoundedInBothDirections) {
  for (const Small& one : mechanisms()) {
    const Event event = GetParam().of({{one.event, 1}});
    const Distribution with = best_of(one.with, GetParam());
    const Distribution without = best_of(one.without, GetParam());
    for (const double c : {0.01, 0.3, 1.0, 4.0, 20.0, 100.0}) {
      const auto bound = static_cast<long double>(event_log_moment(event, c, Adjacency::kZeroOut));
      EXPECT_GE(bound, log_moment_between(with, without, c) - 1e-13L) << to_string(Adjacency::kZeroOut) << c;
      EXPECT_GE(bound, log_moment_between(without, with, c) - 1e-13L) << c;
    }
  }
}

TEST_P(Tuning, DeltaIsBoundedByEveryEngineInBothDirections) {
  for (const Small& one : mechanisms()) {
    const Event event = GetParam().of({{one.event, 1}});
    const Distribution with = best_of(one.with, GetParam());
    const Distribution without = best_of(one.without, GetParam());
    for (const char* engine : {"contour", "prv", "rdp"}) {
      const auto accountant = make_accountant(engine, Adjacency::kZeroOut);
      accountant->compose(event, 1);
      for (const double delta : {1e-2, 1e-6, 1e-10}) {
        const EpsilonBound bound = accountant->epsilon(Delta(delta), Effort::kQuick);
        EXPECT_LE(delta_between(with, without, bound.upper), delta) << engine;
        EXPECT_LE(delta_between(without, with, bound.upper), delta) << engine;
        EXPECT_EQ(bound.lower, 0) << engine;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Distributions, Tuning,
                         testing::Values(Repeats{"Geometric", false, 1, 0.1}, Repeats{"GeometricFew", false, 1, 0.9},
                                         Repeats{"Logarithmic", false, 0, 0.01},
                                         Repeats{"HalfBelow", false, -0.5, 1e-3}, Repeats{"Large", false, 5, 0.3},
                                         Repeats{"Poisson", true, 0, 10}, Repeats{"PoissonMany", true, 0, 300},
                                         Repeats{"PoissonOne", true, 0, 1}, Repeats{"PoissonFew", true, 0, 0.05}),
                         [](const auto& c) { return c.param.name; });

double epsilon_of(const Event& event, double delta, const char* engine = "contour",
                  Adjacency adjacency = Adjacency::kZeroOut) {
  const auto accountant = make_accountant(engine, adjacency);
  accountant->compose(event, 1);
  return accountant->epsilon(Delta(delta)).upper;
}

// A geometric number of runs of an epsilon-DP mechanism is 3·epsilon-DP (Liu, Talwar 2019, arXiv:1811.07971) and
// nearly attains it: an outcome becomes likelier, and a better one that most often hides it rarer.
TEST(TuningBound, IsNotLoose) {
  const Repeats geometric{"", false, 1, 1e-4};
  const long double e = std::exp(1.0L);
  const Small one = {EpsilonDeltaEvent{Epsilon(1), Probability(0)},
                     {1 - 1e-4L * e - 1e-2L / e, 1e-4L * e, 1e-2L / e},
                     {1 - 1e-4L - 1e-2L, 1e-4L, 1e-2L}};
  const Distribution with = best_of(one.with, geometric);
  const Distribution without = best_of(one.without, geometric);
  double exact = 0;
  while (std::max(delta_between(with, without, exact), delta_between(without, with, exact)) > 1e-6L) exact += 1e-3;
  const double bound = epsilon_of(geometric.of({{one.event, 1}}), 1e-6);
  EXPECT_GT(exact, 2.5);
  EXPECT_GE(bound, exact - 1e-3);
  EXPECT_LE(bound, 3.01);
}

// Of a Gaussian, whose D(lambda) is rho·lambda: the best lambda^ is sqrt(log(1/g)/rho).
TEST(TuningBound, IsTheTheorems) {
  const double rho = 0.02;
  const std::vector<TunedRelease> run = {{GaussianEvent{NoiseMultiplier(5)}, 1}};
  for (const double gamma : {0.3, 1e-3}) {
    const double inverse = -std::log(gamma);
    const double selecting = 2 * std::sqrt(inverse * rho) - rho;
    for (const auto& [shape, mean] : {std::pair{1.0, 1 / gamma}, {0.0, (1 / gamma - 1) / inverse}})
      for (const double c : {0.1, 2.0, 50.0}) {
        const double exact = c * (1 + c) * rho + c * (1 + shape) * selecting + std::log(mean);
        const Event event = TuningNegativeBinomialEvent{RepeatShape(shape), RepeatGamma(gamma), run};
        const double bound = event_log_moment(event, c, Adjacency::kZeroOut);
        EXPECT_GE(bound, exact * (1 - 1e-12)) << gamma << ' ' << shape << ' ' << c;
        EXPECT_LE(bound, exact * (1 + 2e-3)) << gamma << ' ' << shape << ' ' << c;
      }
  }
}

TEST(TuningBound, OneRunForCertainCostsWhatTheRunCosts) {
  const std::vector<TunedRelease> run = {{PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(1)}, 1000}};
  const auto rdp = make_accountant("rdp", Adjacency::kZeroOut);
  rdp->compose(run[0].event, run[0].count);
  const double once = rdp->epsilon(Delta(1e-5)).upper;
  const double nearly =
      epsilon_of(TuningNegativeBinomialEvent{RepeatShape(1), RepeatGamma(1 - 1e-9), run}, 1e-5, "rdp");
  EXPECT_GE(nearly, once);
  EXPECT_LT(nearly, once + 1e-6);
}

TEST(TuningBound, MoreRunsCostMore) {
  const std::vector<TunedRelease> run = {{PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(1)}, 1000}};
  double last = 0;
  for (const double mean : {2.0, 10.0, 100.0, 1000.0}) {
    const double now = epsilon_of(TuningPoissonEvent{RepeatMean(mean), run}, 1e-5);
    EXPECT_GT(now, last);
    last = now;
  }
}

TEST(TuningBound, ComposesWithWhatIsReleasedBeside) {
  const std::vector<TunedRelease> run = {{PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(1.5)}, 500}};
  const Event tuned = TuningNegativeBinomialEvent{RepeatShape(0), RepeatGamma(0.05), run};
  const auto both = make_accountant("contour", Adjacency::kZeroOut);
  both->compose(tuned, 1);
  both->compose(run[0].event, 500);
  const double together = both->epsilon(Delta(1e-5)).upper;
  EXPECT_GT(together, epsilon_of(tuned, 1e-5));
  EXPECT_LT(together, epsilon_of(tuned, 5e-6) + 10);
}

TEST(TuningBound, RefusesARunThatMayRevealEverything) {
  const Event tuned = TuningPoissonEvent{RepeatMean(5), {{EpsilonDeltaEvent{Epsilon(1), Probability(1e-6)}, 1}}};
  for (const char* engine : {"contour", "prv", "rdp"})
    EXPECT_THAT([&] { epsilon_of(tuned, 1e-5, engine); },
                testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("finite Rényi divergence")))
        << engine;
}

TEST(TuningBound, RefusesARunThatTheAdjacencyDoesNotKnow) {
  const Event tuned = TuningPoissonEvent{RepeatMean(5), {{FixedSizeGaussianEvent{100, 10, NoiseMultiplier(1)}, 1}}};
  EXPECT_THAT([&] { epsilon_of(tuned, 1e-5); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("zero-out")));
  EXPECT_LT(epsilon_of(tuned, 1e-5, "rdp", Adjacency::kReplaceOne), 1e3);
}

}  // namespace
}  // namespace ghostshard::accountant
