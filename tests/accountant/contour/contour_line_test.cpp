// The integral along a line and the moments on it, against numbers computed elsewhere and against themselves.
#include "accountant/contour/contour_line.h"

#include <gtest/gtest.h>

#include <cmath>

#include "accountant/gaussian/chernoff.h"
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
  template <class Real>
  void expect_each_as_by_itself() const {
    const auto& [name, direction, q, sigma, count, c, step, nodes] = GetParam();
    const SampledGaussian release{q, sigma};
    const double log_m = real_moment(direction, release, c).log_m;
    const LineMoment line(direction, {release, count}, c, log_m, sizeof(Real) > 8);
    const LineMoment precise(direction, {release, count}, c, log_m, true);  // on another mesh
    size_t next = 0;
    line.sweep<Real>(Real(step), nodes, [&](size_t k, const LineMoment::Value& swept) {
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
    });
    EXPECT_EQ(next, nodes);
  }
};

TEST_P(Swept, IsWhatEachNodeIsByItself) { expect_each_as_by_itself<double>(); }
TEST_P(Swept, IsWhatEachNodeIsByItselfInLongDouble) { expect_each_as_by_itself<long double>(); }

INSTANTIATE_TEST_SUITE_P(Moments, Swept,
                         testing::Values(Sweep{"RareRemove", Direction::kRemove, 1e-7, 0.42, 1e7, 2.7, 0.27, 20000},
                                         Sweep{"RareAdd", Direction::kAdd, 1e-6, 0.5, 1e6, 300, 0.27, 5000},
                                         Sweep{"FewSteps", Direction::kRemove, 1e-5, 0.55, 40, 4, 0.3, 20000},
                                         // Powers too large for a double, on weights too small for one.
                                         Sweep{"HeavyTail", Direction::kRemove, 1e-9, 0.3, 1e3, 8, 0.5, 3000},
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
