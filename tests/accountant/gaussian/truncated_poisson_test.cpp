// Truncated Poisson sampling against its definition: every draw of a small data set, every kept subset, every vector of
// contributions of norm 1, and the integral of (P - e^epsilon·Q)+.
#include "accountant/gaussian/truncated_poisson.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "accountant/accountant.h"
#include "accountant/gaussian/chernoff.h"

namespace ghostshard::accountant {
namespace {

using Sums = std::map<int, double>;  // probability of each sum without noise

double choose(int n, int k) { return std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)); }

// The mechanism itself: each of the records is drawn with probability q, a uniform subset of `cap` is kept.
Sums released(const std::vector<int>& records, double q, int cap) {
  Sums sums;
  const int n = static_cast<int>(records.size());
  for (int drawn = 0; drawn < 1 << n; ++drawn) {
    const int size = __builtin_popcount(static_cast<unsigned>(drawn));
    const double probability = std::pow(q, size) * std::pow(1 - q, n - size);
    const int kept_size = std::min(size, cap);
    for (int kept = drawn;; kept = (kept - 1) & drawn) {
      if (__builtin_popcount(static_cast<unsigned>(kept)) == kept_size) {
        int sum = 0;
        for (int i = 0; i < n; ++i)
          if ((kept >> i & 1) != 0) sum += records[static_cast<size_t>(i)];
        sums[sum] += probability / choose(size, kept_size);
      }
      if (kept == 0) break;
    }
  }
  return sums;
}

double density(const Sums& sums, double sigma, double x) {
  double value = 0;
  for (const auto& [sum, probability] : sums)
    value += probability * std::exp(-(x - sum) * (x - sum) / (2 * sigma * sigma));
  return value / (sigma * 2.5066282746310002);
}

// delta of one execution or two, by the trapezoid rule.
double delta_once(const Sums& p, const Sums& q, double sigma, double epsilon) {
  const double h = 2e-3;
  double sum = 0;
  for (double x = -16; x < 16; x += h)
    sum += std::max(0.0, density(p, sigma, x) - std::exp(epsilon) * density(q, sigma, x));
  return sum * h;
}
double delta_twice(const Sums& p, const Sums& q, double sigma, double epsilon) {
  const double h = 0.05;
  std::vector<std::pair<double, double>> points;
  for (double x = -11; x < 11; x += h) points.emplace_back(density(p, sigma, x), density(q, sigma, x));
  double sum = 0;
  for (const auto& [p1, q1] : points)
    for (const auto& [p2, q2] : points) sum += std::max(0.0, p1 * p2 - std::exp(epsilon) * q1 * q2);
  return sum * h * h;
}

struct Small {
  const char* name;
  Adjacency adjacency;
  int units, cap;
  double q, sigma;
  double attained;  // by the worst of these data sets, of the bound at epsilon 0; the rest hides whether X >= cap
};
void PrintTo(const Small& c, std::ostream* out) { *out << c.name; }

class TruncatedPoisson : public testing::TestWithParam<Small> {
 protected:
  std::unique_ptr<Accountant> engine(const char* name, int64_t steps) const {
    const Small& c = GetParam();
    auto engine = make_accountant(name, c.adjacency);
    engine->compose(TruncatedPoissonGaussianEvent{c.units, SamplingRate(c.q), c.cap, NoiseMultiplier(c.sigma)}, steps);
    return engine;
  }
  // Calls visit(with x, without x) for all data sets of +1, 0 and -1; by symmetry x is 1.
  template <class Visit>
  void for_each_pair(const Visit& visit) const {
    const Small& c = GetParam();
    for (const int others : {c.units - 1, c.units}) {
      if (others == c.units && c.adjacency == Adjacency::kZeroOut) continue;
      for (int kind = 0; kind < (others + 1) * (others + 1); ++kind) {
        const int positive = kind % (others + 1);
        const int none = kind / (others + 1);
        if (positive + none > others) continue;
        std::vector<int> records(static_cast<size_t>(others), -1);
        std::fill_n(records.begin(), positive, 1);
        std::fill_n(records.begin() + positive, none, 0);
        std::vector<int> with = records;
        with.push_back(1);
        if (c.adjacency == Adjacency::kZeroOut) records.push_back(0);
        visit(released(with, c.q, c.cap), released(records, c.q, c.cap));
      }
    }
  }
};

TEST_P(TruncatedPoisson, NoDataSetRevealsMore) {
  const Small& c = GetParam();
  for (const double epsilon : {0.0, 0.5, 1.0, 2.0}) {
    double worst = 0;
    for_each_pair([&](const Sums& with, const Sums& without) {
      worst =
          std::max({worst, delta_once(with, without, c.sigma, epsilon), delta_once(without, with, c.sigma, epsilon)});
    });
    const double bound = engine("contour", 1)->delta(Epsilon(epsilon)).upper;
    EXPECT_LE(worst, bound * (1 + 1e-6)) << epsilon;
    EXPECT_GE(worst, epsilon == 0 ? c.attained * bound : 0) << epsilon;
    EXPECT_LE(worst, engine("rdp", 1)->delta(Epsilon(epsilon)).upper) << epsilon;
  }
}

TEST_P(TruncatedPoisson, NorInTwoSteps) {
  const Small& c = GetParam();
  for (const double epsilon : {0.0, 1.0}) {
    const double bound = engine("contour", 2)->delta(Epsilon(epsilon)).upper;
    for_each_pair([&](const Sums& with, const Sums& without) {
      EXPECT_LE(delta_twice(with, without, c.sigma, epsilon), bound * (1 + 1e-3)) << epsilon;
      EXPECT_LE(delta_twice(without, with, c.sigma, epsilon), bound * (1 + 1e-3)) << epsilon;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Small, TruncatedPoisson,
                         testing::Values(Small{"AddOrRemove", Adjacency::kAddOrRemove, 5, 2, 0.4, 1.2, 0.9},
                                         Small{"AddOrRemoveRarely", Adjacency::kAddOrRemove, 6, 4, 0.2, 0.9, 0.9},
                                         Small{"AddOrRemoveNearlyAlways", Adjacency::kAddOrRemove, 5, 1, 0.9, 1.5, 0.9},
                                         Small{"EverybodyIsDrawn", Adjacency::kAddOrRemove, 4, 2, 1, 1.5, 0.9},
                                         Small{"ZeroOut", Adjacency::kZeroOut, 5, 2, 0.4, 1.2, 0.9},
                                         Small{"ZeroOutNearlyAlways", Adjacency::kZeroOut, 5, 1, 0.9, 1.5, 0.3},
                                         Small{"ZeroOutRarely", Adjacency::kZeroOut, 6, 4, 0.2, 0.9, 0.9},
                                         Small{"NoneIsTruncated", Adjacency::kZeroOut, 4, 4, 0.3, 1, 0.9}),
                         [](const auto& c) { return c.param.name; });

// Over many steps, epsilon between that of Poisson sampling and that of no sampling at all.
TEST(TruncatedPoissonRun, LiesBetweenPoissonAndRenyi) {
  const auto event = [](int64_t cap) {
    return TruncatedPoissonGaussianEvent{60'000, SamplingRate(256.0 / 60'000), cap, NoiseMultiplier(1.1)};
  };
  const auto upper = [](const char* name, const Event& at) {
    const auto engine = make_accountant(name, Adjacency::kAddOrRemove);
    engine->compose(at, 5000);
    return engine->epsilon(Delta(1e-6)).upper;
  };
  double before = upper("contour", PoissonGaussianEvent{SamplingRate(256.0 / 60'000), NoiseMultiplier(1.1)});
  EXPECT_NEAR(upper("contour", event(600)), before, 1e-6 * before);  // 21 deviations above the mean
  for (const int64_t cap : {340, 300, 256}) {
    const double found = upper("contour", event(cap));
    EXPECT_GT(found, before) << cap;
    EXPECT_LT(found, upper("rdp", event(cap))) << cap;
    before = found;
  }
  EXPECT_LT(before, 8);
}

// Where every second draw is truncated, the table is close to what add-or-remove costs, whose pairs are attained.
TEST(TruncatedPoissonRun, CostsLittleMoreUnderZeroOut) {
  const TruncatedPoissonGaussianEvent event{60'000, SamplingRate(256.0 / 60'000), 256, NoiseMultiplier(1.1)};
  const auto upper = [&](Adjacency adjacency) {
    const auto engine = make_accountant("contour", adjacency);
    engine->compose(event, 500);
    return engine->epsilon(Delta(1e-5)).upper;
  };
  EXPECT_LT(upper(Adjacency::kZeroOut), 1.03 * upper(Adjacency::kAddOrRemove));
}

// The mixture's moment: the mean of its pairs' moments, here of pairs that are moderate.
TEST(TruncatedPoissonRun, TheMomentIsTheMeanOfItsPairs) {
  ComposedRelease mixture{{0.1, 1.1}, 1};
  mixture.weight = 0.7;
  mixture.alternatives = {{0.2, {0.3, 0.8}}};
  mixture.nothing = 0.1;
  for (const Direction direction : {Direction::kRemove, Direction::kAdd}) {
    const double mean = 0.7 * std::exp(real_moment(direction, mixture.release, 2.5).log_m) +
                        0.2 * std::exp(real_moment(direction, SampledGaussian{0.3, 0.8}, 2.5).log_m) + 0.1;
    const RealMoment found = moment_of_phase(direction, mixture, 2.5);
    EXPECT_NEAR(found.log_m, std::log(mean), 1e-14);
    EXPECT_LT(found.error, 1e-12);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Binomial tails, against exact sums of long doubles and against a 30-digit value

struct Tail {
  const char* name;
  int64_t n;
  double q;
  int64_t k;
  double value;  // 0: to be added up here
};
void PrintTo(const Tail& c, std::ostream* out) { *out << c.name; }
class BinomialTail : public testing::TestWithParam<Tail> {};

TEST_P(BinomialTail, IsBracketed) {
  const auto& [name, n, q, k, value] = GetParam();
  long double exact = value;
  if (value == 0) {
    long double coefficient = 1;  // of C(n, i)
    for (int64_t i = 0; i <= n; ++i) {
      if (i >= k)
        exact +=
            coefficient * std::pow(static_cast<long double>(q), i) * std::pow(1 - static_cast<long double>(q), n - i);
      coefficient = coefficient * static_cast<long double>(n - i) / static_cast<long double>(i + 1);
    }
  }
  const TailBracket found = binomial_tail(n, q, k);
  EXPECT_LE(found.lower, static_cast<double>(exact * (1 + 1e-15L)));
  EXPECT_GE(found.upper, static_cast<double>(exact * (1 - 1e-15L)));
  EXPECT_LE(found.upper - found.lower, 1e-11 * found.upper);
}
INSTANTIATE_TEST_SUITE_P(Tails, BinomialTail,
                         testing::Values(Tail{"Few", 5, 0.3, 2, 0}, Tail{"All", 7, 0.6, 7, 0},
                                         Tail{"Least", 7, 0.6, 1, 0}, Tail{"BelowTheMean", 200, 0.5, 90, 0},
                                         Tail{"AtTheMean", 200, 0.5, 100, 0}, Tail{"FarOut", 150, 0.1, 60, 0},
                                         Tail{"NearOne", 120, 0.99, 119, 0}),
                         [](const auto& c) { return c.param.name; });

TEST(BinomialTails, AreKnownAtTheEnds) {
  EXPECT_EQ(binomial_tail(10, 0.5, 0).lower, 1);
  EXPECT_EQ(binomial_tail(10, 0.5, 11).upper, 0);
  EXPECT_EQ(binomial_tail(10, 1, 10).lower, 1);
  // Too many terms: Chernoff.
  const TailBracket huge = binomial_tail(int64_t{1} << 52, 0.5, (int64_t{1} << 51) + 100'000'000'000);
  EXPECT_EQ(huge.lower, 0);
  EXPECT_EQ(huge.upper, 1e-300);  // a bound that would be below it counts as this, never as 0
}

}  // namespace
}  // namespace ghostshard::accountant
