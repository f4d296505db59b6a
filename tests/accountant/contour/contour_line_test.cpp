// The integral along a line and the moments on it, against numbers computed elsewhere and against themselves.
#include "accountant/contour/contour_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "accountant/gaussian/chernoff.h"
#include "accountant/gaussian/releases.h"
#include "accountant/gaussian/single_release.h"

namespace ghostshard::accountant {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// delta in either direction from 34-digit arithmetic: another line, another mesh, unshifted nodes

struct DeltaRow {
  const char* name;
  Direction direction;
  double q, sigma;
  int64_t steps;
  double epsilon, delta;
  // Rounding of exponents up to 1e3, times the cancelling of the integral.
  double tolerance = 1e-11;
};

void PrintTo(const DeltaRow& row, std::ostream* out) { *out << row.name; }

class DeltaOfOneDirection : public testing::TestWithParam<DeltaRow> {};

TEST_P(DeltaOfOneDirection, IsTheMultiprecisionIntegral) {
  const DeltaRow& row = GetParam();
  const std::vector<ComposedRelease> phases = {{{row.q, row.sigma}, static_cast<double>(row.steps)}};
  const auto saddle = saddle_of_epsilon(row.direction, phases, row.epsilon);
  ASSERT_TRUE(saddle.has_value());
  for (const double intercept : {0.0, 0.6, 0.9}) {
    const auto line =
        ContourLine::make(row.direction, phases, *saddle, row.epsilon, std::log(row.delta), intercept, 100'000'000);
    ASSERT_TRUE(line.has_value()) << intercept;
    const ContourLine::Value value = line->at(row.epsilon);
    EXPECT_NEAR(value.delta / row.delta, 1, row.tolerance) << intercept;
    EXPECT_LE(value.bracket.lower, row.delta * (1 + 1e-15)) << intercept;
    EXPECT_GE(value.bracket.upper, row.delta * (1 - 1e-15)) << intercept;
  }
}

// On a shorter period, whose alias to the left is taken off.
TEST_P(DeltaOfOneDirection, KnownAliasIsNoPartOfIt) {
  const DeltaRow& row = GetParam();
  if (row.direction != Direction::kRemove || row.q == 1) return;
  const std::vector<ComposedRelease> phases = {{{row.q, row.sigma}, static_cast<double>(row.steps)}};
  const auto saddle = saddle_of_epsilon(row.direction, phases, row.epsilon);
  ASSERT_TRUE(saddle.has_value());
  const double below_zero = largest_loss_of_adding(phases);
  for (const double digits : {2.0, 12.0, 24.0, 32.0}) {
    const auto line = ContourLine::make(row.direction, phases, *saddle, row.epsilon, std::log(row.delta), 0,
                                        100'000'000, digits, nullptr, nullptr, below_zero);
    if (!line) continue;
    const ContourLine::Value value = line->at(row.epsilon);
    EXPECT_LE(value.bracket.lower, row.delta * (1 + 1e-15)) << digits;
    EXPECT_GE(value.bracket.upper, row.delta * (1 - 1e-15)) << digits;
    if (digits < 30) continue;
    EXPECT_NEAR(value.delta / row.delta, 1, 1e-6);
    // Newton's method needs the slope of what is taken off, too.
    const double step = 1e-4 / line->intercept();
    const double slope = (line->at(row.epsilon + step).delta - line->at(row.epsilon - step).delta) / (2 * step);
    EXPECT_NEAR(slope / value.derivative, 1, 1e-3) << digits;
  }
}

// With few digits asked for, alias and what lies beyond the last node are large: the bracket still holds the truth.
TEST_P(DeltaOfOneDirection, WhatIsLeftOutIsCounted) {
  const DeltaRow& row = GetParam();
  const std::vector<ComposedRelease> phases = {{{row.q, row.sigma}, static_cast<double>(row.steps)}};
  const auto saddle = saddle_of_epsilon(row.direction, phases, row.epsilon);
  ASSERT_TRUE(saddle.has_value());
  for (const double digits : {0.5, 1.0, 2.0, 3.0, 5.0, 8.0}) {
    const auto line =
        ContourLine::make(row.direction, phases, *saddle, row.epsilon, std::log(row.delta), 0.9, 100'000'000, digits);
    if (!line) continue;
    const Bracket bracket = line->at(row.epsilon).bracket;
    EXPECT_LE(bracket.lower, row.delta * (1 + 1e-15)) << digits;
    EXPECT_GE(bracket.upper, row.delta * (1 - 1e-15)) << digits;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Multiprecision, DeltaOfOneDirection,
    testing::Values(DeltaRow{"PlainRemove", Direction::kRemove, 0.03, 0.9, 777, 4.5, 0.0013279168390444961994},
                    DeltaRow{"PlainAdd", Direction::kAdd, 0.03, 0.9, 777, 4.5, 0.000025186198759277227569},
                    DeltaRow{"Random0Remove", Direction::kRemove, 0.0255, 1.67, 1725, 5.229, 6.30762146971137372e-13},
                    DeltaRow{"Random1Add", Direction::kAdd, 0.0255, 1.67, 1725, 4.585, 7.33617221947783525e-13},
                    DeltaRow{"Random2Remove", Direction::kRemove, 0.0576, 0.74, 18515, 246.305,
                             2.18529974393345602e-13},
                    DeltaRow{"Random3Add", Direction::kAdd, 0.0576, 0.74, 18515, 180.632, 2.53451152452675406e-13},
                    DeltaRow{"Random4Remove", Direction::kRemove, 0.0185, 3.17, 3216, 2.481, 5.89062425593450911e-14},
                    DeltaRow{"Random5Add", Direction::kAdd, 0.0185, 3.17, 3216, 2.371, 6.66696586433262926e-14},
                    DeltaRow{"Random6Remove", Direction::kRemove, 0.0289, 1.39, 81, 1.426, 2.23995312687697475e-8},
                    DeltaRow{"Random7Remove", Direction::kRemove, 0.0112, 2.27, 8234, 3.853, 1.8613676569335099e-16},
                    DeltaRow{"Random8Add", Direction::kAdd, 0.0112, 2.27, 8234, 3.663, 2.69485234688520624e-16},
                    DeltaRow{"Random9Remove", Direction::kRemove, 0.124, 4.03, 321, 4.349, 2.80088079128149136e-14},
                    DeltaRow{"Random10Add", Direction::kAdd, 0.124, 4.03, 321, 3.947, 2.84037625980659982e-14},
                    DeltaRow{"Random11Remove", Direction::kRemove, 0.0391, 1.05, 891, 10.306, 8.97601195291639478e-10},
                    DeltaRow{"OneVisitRemove", Direction::kRemove, 1e-5, 0.55, 100000, 1, 1.2375389263789712653886e-9,
                             1e-10 /* thousands of nodes that hardly fall */},
                    DeltaRow{"OneVisitAdd", Direction::kAdd, 1e-5, 0.55, 100000, 0.003, 4.9310406268993771512e-3},
                    DeltaRow{"Random12Add", Direction::kAdd, 0.0391, 1.05, 891, 7.427, 9.65639625468235485e-10}),
    [](const auto& c) { return c.param.name; });

// Where a unit is hardly ever drawn the period is a small part of the other's, and the known alias far above delta.
TEST(KnownAlias, IsTakenOffAtTinyRates) {
  for (const SampledGaussian release : {SampledGaussian{5.8e-6, 1.48}, SampledGaussian{2.4e-5, 1.66}}) {
    const std::vector<ComposedRelease> phases = {{release, 4}};
    const double epsilon = 6 * release.q;
    const auto saddle = saddle_of_epsilon(Direction::kRemove, phases, epsilon);
    ASSERT_TRUE(saddle.has_value());
    const auto line_of = [&](double below_zero, double digits) {
      return ContourLine::make(Direction::kRemove, phases, *saddle, epsilon, std::log(1e-8), 0, 2'000'000'000, digits,
                               nullptr, nullptr, below_zero);
    };
    const auto all = line_of(std::numeric_limits<double>::infinity(), 16);
    ASSERT_TRUE(all.has_value());
    const ContourLine::Value truth = all->at(epsilon);
    ASSERT_GT(truth.bracket.lower, 0.99 * truth.delta);
    for (const double digits : {3.0, 8.0, 14.0}) {
      const auto line = line_of(largest_loss_of_adding(phases), digits);
      ASSERT_TRUE(line.has_value());
      EXPECT_LT(line->period(), all->period() / 2);
      const ContourLine::Value value = line->at(epsilon);
      EXPECT_LE(value.bracket.lower, truth.bracket.upper) << digits;
      EXPECT_GE(value.bracket.upper, truth.bracket.lower) << digits;
      if (digits < 10) continue;
      EXPECT_NEAR(value.delta / truth.delta, 1, 1e-4);
      EXPECT_NEAR(value.derivative / truth.derivative, 1, 1e-3);
      EXPECT_GT(value.bracket.lower, 0.999 * truth.delta);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Many phases

// Thousands of Gaussians are one, whose delta has a closed form (60 digits). Added to the first one's log M(c), each of
// the others' is below half a unit of long double's last place, and all of them are lost.
TEST(ContourLine, TheErrorGrowsWithTheNumberOfPhases) {
  constexpr double kC = 0.03;  // log M(c) of the first is 154, half a unit of which is 6.9e-18
  constexpr double kEpsilon = 5300;
  const double others = std::sqrt(kC * (1 + kC) / 2 / 6.6e-18);
  std::vector<ComposedRelease> phases(60'001, {{1.0, others}, 1});
  phases.front().release.sigma = 0.01;
  constexpr double kTruth = 0.0013068744317685827046;
  const auto line = ContourLine::make(Direction::kRemove, phases, kC, kEpsilon, std::log(kTruth), 1, 10'000'000);
  ASSERT_TRUE(line);
  const Bracket found = line->at(kEpsilon).bracket;
  EXPECT_LE(found.lower, kTruth);
  EXPECT_GE(found.upper, kTruth);
  EXPECT_LT(found.upper / found.lower, 1 + 1e-11);
}

// ---------------------------------------------------------------------------------------------------------------------
// A rate near 1: 1 - q + q·e^u has its digits in 1 - q

struct NearOne {
  const char* name;
  Direction direction;
  double sigma, c;
  double left = 1e-12;  // 1 - q, a double as q is
};
void PrintTo(const NearOne& c, std::ostream* out) { *out << c.name; }
class RateNearOne : public testing::TestWithParam<NearOne> {
 protected:
  // E[w^(p0 ± it)] by brute force.
  std::complex<long double> moment(long double t) const {
    const auto& [name, direction, noise, c, left] = GetParam();
    const bool remove = direction == Direction::kRemove;
    const long double q = 1 - left;
    const long double sigma = noise;
    const std::complex<long double> p(remove ? 1 + c : -c, remove ? t : -t);
    const long double h = std::min(sigma * sigma / 8, sigma / 12) / (1 + t);
    const long double reach = c + 1 + 20 * sigma;
    std::complex<long double> sum = 0;
    for (long double x = -reach; x < reach; x += h) {
      const long double l = std::log((1 - q) + q * std::exp((2 * x - 1) / (2 * sigma * sigma)));
      sum += std::exp(p * l - x * x / (2 * sigma * sigma));
    }
    return sum * h / (sigma * 2.506628274631000502415765284811L);
  }
};

// B_y of contour_moments.h at y = angle·sigma², relative to M(c): all that a shift of the line bounds a moment by.
TEST_P(RateNearOne, TheIntegralOfEachShiftIsBounded) {
  const auto& [name, direction, noise, c, left] = GetParam();
  const RealMoment real = real_moment(direction, {1 - left, noise}, c);
  const LineMoment line(direction, {{1 - left, noise}, 1}, c, real, false);
  const long double sigma = noise;
  const long double q = 1 - left;
  const long double p = direction == Direction::kRemove ? 1 + c : -c;
  const long double h = std::min(sigma * sigma / 16, sigma / 24);
  for (size_t index = 0; index < 24; index += 3)
    for (const double t : {0.1, 0.7, 2.0, 5.0}) {
      const long double angle = line.angle_of(index);
      long double sum = 0;
      for (long double x = -c - 1 - 20 * sigma; x < c + 1 + 20 * sigma; x += h) {
        const long double odds = q * std::exp((2 * x - 1) / (2 * sigma * sigma));
        const std::complex<long double> w((1 - q) + odds * std::cos(angle), odds * std::sin(angle));
        sum += std::exp(p * std::log(std::abs(w)) - t * std::arg(w) - x * x / (2 * sigma * sigma));
      }
      const long double truth = std::log(sum * h / (sigma * 2.506628274631000502415765284811L)) +
                                angle * angle * sigma * sigma / 2 - real.log_m;
      EXPECT_GE(static_cast<long double>(line.log_bound(index, t)), truth) << index << ' ' << t;
      EXPECT_NEAR(line.log_bound(index, t), static_cast<double>(truth), 1e-6) << index << ' ' << t;
    }
}

TEST_P(RateNearOne, TheMomentAndTheRestOfTheLineAreBounded) {
  const auto& [name, direction, sigma, c, left] = GetParam();
  const SampledGaussian release{1 - left, sigma};
  const RealMoment real = real_moment(direction, release, c);
  const LineMoment line(direction, {release, 1}, c, real, false);
  for (const double t : {0.0, 0.3, 1.0, 2.0, 4.0}) {
    const std::complex<long double> truth = moment(t) * std::exp(static_cast<long double>(-real.log_m));
    const LineMoment::Value found = line.at<double>(t);
    const auto modulus = static_cast<double>(std::exp(found.log_power.real()));
    if (std::abs(truth) < 1e-8L) break;  // long double does not know it
    EXPECT_LE(static_cast<double>(std::abs(std::exp(found.log_power) - truth)), modulus * found.relative_error + 1e-15)
        << t;
    EXPECT_LT(found.relative_error, 1e-6) << t;
    EXPECT_GE(line.log_rest(t), static_cast<double>(std::log(std::abs(truth))) - 1e-15) << t;
  }
}
INSTANTIATE_TEST_SUITE_P(Lines, RateNearOne,
                         testing::Values(NearOne{"Remove", Direction::kRemove, 1, 3},
                                         NearOne{"Add", Direction::kAdd, 1, 3},
                                         NearOne{"AddLittleNoise", Direction::kAdd, 0.3, 2},
                                         NearOne{"AddMuchNoise", Direction::kAdd, 6, 20},
                                         NearOne{"AddNearerToOne", Direction::kAdd, 0.3, 2.6, 0x1p-50}),
                         [](const auto& c) { return c.param.name; });

// ---------------------------------------------------------------------------------------------------------------------
// One node after the other, against each by itself

struct Sweep {
  const char* name;
  Direction direction;
  double q, sigma, count, c, step;
  size_t nodes;
};

void PrintTo(const Sweep& c, std::ostream* out) { *out << c.name; }

class Swept : public testing::TestWithParam<Sweep> {
 protected:
  // parts: that the line is taken in.
  template <class Real>
  void expect_each_as_by_itself(size_t parts = 1) const {
    const auto& [name, direction, q, sigma, count, c, step, nodes] = GetParam();
    const SampledGaussian release{q, sigma};
    const RealMoment real = real_moment(direction, release, c);
    const LineMoment line(direction, {release, count}, c, real, sizeof(Real) > 8);
    const LineMoment precise(direction, {release, count}, c, real, true);  // on another mesh
    size_t next = 0;
    const auto visit = [&, &step = step](size_t k, const LineMoment::Value& swept) {
      EXPECT_EQ(k, next++);
      if (k > 200 && k % 37 != 0) return;
      const LineMoment::Value alone =
          precise.at<long double>(static_cast<long double>(Real(step) * static_cast<Real>(k)));
      const auto modulus = [](const LineMoment::Value& value) { return std::exp(value.log_power.real()); };
      // Each lies within its error of the same truth, both in terms of M(c)^count.
      const double apart = static_cast<double>(std::abs(std::exp(swept.log_power) - std::exp(alone.log_power)));
      const auto allowed =
          static_cast<double>(modulus(swept) * swept.relative_error + modulus(alone) * alone.relative_error);
      EXPECT_LE(apart, allowed) << k;
      // And the error is of use, unless the value is negligible.
      EXPECT_TRUE(static_cast<double>(modulus(swept)) * swept.relative_error < 1e-7)
          << k << ' ' << swept.relative_error;
    };
    for (size_t part = 0; part < parts; ++part)
      line.sweep<Real>(Real(step), nodes * part / parts, nodes * (part + 1) / parts, visit);
    EXPECT_EQ(next, nodes);
  }
};

TEST_P(Swept, IsWhatEachNodeIsByItself) { expect_each_as_by_itself<double>(); }
TEST_P(Swept, IsWhatEachNodeIsByItselfInParts) { expect_each_as_by_itself<double>(7); }
TEST_P(Swept, IsWhatEachNodeIsByItselfInLongDouble) { expect_each_as_by_itself<long double>(); }

// From one node to the next a product and its factor round, 2.5 units at least; so many follow each other.
TEST(LineMoment, ASweepCountsItsTurns) {
  constexpr double kUnit = 0x1p-52;
  constexpr size_t kNodes = 400;
  constexpr double kStep = 0.003;
  const SampledGaussian release{0.5, 0.6};
  const RealMoment real = real_moment(Direction::kRemove, release, 3);
  ASSERT_GT(real.log_m, 1.5);  // no sum of M - 1
  const LineMoment line(Direction::kRemove, {release, 1}, 3, real, false);
  line.sweep<double>(kStep, 0, kNodes, [&](size_t k, const LineMoment::Value& swept) {
    const LineMoment::Value alone = line.at<double>(kStep * static_cast<double>(k));
    EXPECT_GE(swept.relative_error, alone.relative_error * (1 - 1e-9) + 8 * 2.5 * kUnit) << k;
  });
}

INSTANTIATE_TEST_SUITE_P(Moments, Swept,
                         testing::Values(Sweep{"RareRemove", Direction::kRemove, 1e-7, 0.42, 1e7, 2.7, 0.27, 20000},
                                         Sweep{"RareAdd", Direction::kAdd, 1e-6, 0.5, 1e6, 300, 0.27, 5000},
                                         Sweep{"FewSteps", Direction::kRemove, 1e-5, 0.55, 40, 4, 0.3, 20000},
                                         // Powers too large for a double, on weights too small for one.
                                         Sweep{"HeavyTail", Direction::kRemove, 1e-9, 0.3, 1e3, 8, 0.5, 3000},
                                         // Steps of hundreds of radians.
                                         Sweep{"LargeLosses", Direction::kRemove, 0.3, 0.2, 2, 0.5, 9, 300},
                                         Sweep{"MuchNoise", Direction::kRemove, 3.3e-4, 4, 1e4, 210, 5, 400},
                                         // From the form M - 1 to the direct one where q·|p| = 1.
                                         Sweep{"BothForms", Direction::kRemove, 0.01, 1, 1e4, 5, 0.7, 2000},
                                         Sweep{"BothFormsAdd", Direction::kAdd, 0.02, 0.8, 500, 9, 0.7, 2000},
                                         Sweep{"DirectOnly", Direction::kRemove, 0.2, 0.5, 3, 0.9, 0.16, 20000}),
                         [](const auto& c) { return c.param.name; });

// The line's integral at q = 1 against the closed form: nothing of the engine's quadrature is shared.
TEST(Contour, TheLineAtRateOneIsTheClosedForm) {
  for (const Direction direction : {Direction::kRemove, Direction::kAdd})
    for (const double at : {0.5, 3.0, 8.0}) {
      const std::vector<ComposedRelease> phases = {{{1.0, 10}, 100}};
      const Bracket exact = single_release_delta(direction, {1.0, 1.0}, at);
      const auto saddle = saddle_of_epsilon(direction, phases, at);
      ASSERT_TRUE(saddle);
      const auto line = ContourLine::make(direction, phases, *saddle, at, std::log(exact.upper), 0, 1'000'000);
      ASSERT_TRUE(line);
      EXPECT_LE(line->at(at).bracket.lower, exact.upper) << at;
      EXPECT_GE(line->at(at).bracket.upper, exact.lower) << at;
      EXPECT_NEAR(line->at(at).delta / exact.upper, 1, 1e-11) << at;
    }
}

}  // namespace
}  // namespace ghostshard::accountant
