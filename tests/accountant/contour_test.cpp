// What the contour accountant claims, against numbers computed elsewhere, and against itself where no such number
// exists.
#include "accountant/contour.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <sstream>

#include "accountant/contour_line.h"
#include "accountant/single_release.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

Event sampled(double q, double sigma) { return PoissonGaussianEvent{SamplingRate(q), NoiseMultiplier(sigma)}; }

EpsilonBound epsilon(double q, double sigma, int64_t steps, double delta, const std::string& engine = "contour") {
  return charged(engine, {"", {{q, sigma, steps}}, delta, 0, 0})->epsilon(Delta(delta));
}

// ---------------------------------------------------------------------------------------------------------------------
// The oracle

class ContourOracle : public testing::TestWithParam<OracleTruth> {
 protected:
  // The truth is stated with 16 digits.
  double stated() const { return GetParam().error + 4e-16 * GetParam().epsilon; }
};

// 1e-12 where many steps make the loss smooth and delta is not tiny, 1e-9 elsewhere: what the method must reach.
TEST_P(ContourOracle, EstimateIsTheTruth) {
  int64_t steps = 0;
  for (const OraclePhase& phase : GetParam().phases) steps += phase.steps;
  const double tolerance = steps >= 1000 && GetParam().delta >= 1e-12 ? 1e-12 : 1e-9;
  EXPECT_NEAR(charged("contour", GetParam())->epsilon(Delta(GetParam().delta)).estimate, GetParam().epsilon,
              tolerance + stated());
}

TEST_P(ContourOracle, BracketHoldsTheTruthAndIsNarrow) {
  const EpsilonBound found = charged("contour", GetParam())->epsilon(Delta(GetParam().delta));
  EXPECT_LE(found.lower, GetParam().epsilon + stated());
  EXPECT_GE(found.upper, GetParam().epsilon - stated());
  EXPECT_LE(found.lower, found.estimate);
  EXPECT_LE(found.estimate, found.upper);
  EXPECT_LT(found.upper - found.lower, 1e-7);  // a thousandth of what is asked for
  EXPECT_EQ(found.accountant, "contour");
}

TEST_P(ContourOracle, QuickAnswersAreBoundsToo) {
  const EpsilonBound found = charged("contour", GetParam())->epsilon(Delta(GetParam().delta), Effort::kQuick);
  EXPECT_LE(found.lower, GetParam().epsilon + stated());
  EXPECT_GE(found.upper, GetParam().epsilon - stated());
}

// d log(delta)/d epsilon is at most the line's intercept, which is below 300 in these rows, plus 1.
TEST_P(ContourOracle, DeltaAtTheTrueEpsilonIsDelta) {
  const DeltaBound found = charged("contour", GetParam())->delta(Epsilon(GetParam().epsilon));
  EXPECT_LE(found.lower, GetParam().delta * (1 + 300 * stated()));
  EXPECT_GE(found.upper, GetParam().delta * (1 - 300 * stated()));
  EXPECT_NEAR(found.estimate / GetParam().delta, 1, 3e-7);
}

INSTANTIATE_TEST_SUITE_P(Rows, ContourOracle, testing::ValuesIn(oracle_truths()),
                         [](const auto& c) { return std::string(c.param.name); });

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

// ---------------------------------------------------------------------------------------------------------------------
// Closed forms

TEST(Contour, OneReleaseIsItsClosedForm) {
  for (const double q : {1e-4, 0.01, 0.3, 0.99}) {
    const EpsilonBound found = epsilon(q, 0.8, 1, 1e-6);
    const Bracket remove = single_release_epsilon(Direction::kRemove, {q, 0.8}, Delta(1e-6));
    EXPECT_LE(remove.lower, found.upper) << q;
    EXPECT_LT(found.upper - found.lower, 1e-9) << q;
  }
  EXPECT_NEAR(epsilon(0.01, 1, 1, 1e-5).estimate, 0.1994504477959147, 1e-12);  // 40-digit bisection
}

// Balle, Wang: T releases at sigma are one at sigma/sqrt(T). Twice 2.2e-16 relative in sigma, epsilon/sigma below 20.
TEST(Contour, UnsampledGaussiansAreOneGaussian) {
  EXPECT_NEAR(epsilon(1, 10, 100, 1e-5).estimate, 4.377178095681225, 1e-12);
  EXPECT_NEAR(epsilon(1, 10, 100, 1e-5).estimate, epsilon(1, 1, 1, 1e-5).estimate, 1e-13);
  EXPECT_NEAR(epsilon(1, 30, 10, 1e-20).estimate, epsilon(1, 30 / std::sqrt(10.0), 1, 1e-20).estimate, 1e-12);
}

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

// ---------------------------------------------------------------------------------------------------------------------
// Few steps, tiny rates: losses are rare and large beside epsilon, which is where a vertical line needs too many nodes

bool by_renyi(const EpsilonBound& bound) { return bound.detail.find("orders") != std::string::npos; }

// Two releases: delta(eps) = E[delta_1(eps - loss)] over the first one's outcome, the closed form for the second.
// Shares nothing with line or grid. delta_1 has all derivatives, but no series, where its epsilon becomes the least
// loss there is: the integral is taken in two, each by the double exponential rule (Takahasi, Mori 1974), which such
// ends suit.
double delta_of_two(Direction direction, SampledGaussian release, double at) {
  const auto [q, sigma] = release;
  const bool remove = direction == Direction::kRemove;
  const auto integrand = [&](double x) {
    const double zero = std::exp(-x * x / (2 * sigma * sigma));
    const double one = std::exp(-(x - 1) * (x - 1) / (2 * sigma * sigma));
    const double loss = std::log1p(q * std::expm1((2 * x - 1) / (2 * sigma * sigma)));
    const double density = remove ? (1 - q) * zero + q * one : zero;
    const Bracket rest = single_release_delta(direction, release, at - (remove ? loss : -loss));
    return density * (rest.lower + rest.upper) / 2;
  };
  const double low = -14 * sigma;
  const double high = 1 + 14 * sigma;
  // Where the loss of one release is `at` plus or minus the other's extreme, -log(1-q).
  const double odds = std::expm1(remove ? at - std::log1p(-q) : -at - std::log1p(-q)) + q;
  const double kink = odds > 0 ? std::clamp(sigma * sigma * std::log(odds / q) + 0.5, low, high) : low;
  const auto integral = [&](double from, double to) {
    const double half = (to - from) / 2;
    const double step = 1.0 / 512;
    double sum = 0;
    for (int i = -2048; i <= 2048; ++i) {
      const double sinh = std::sinh(step * i) * std::numbers::pi / 2;
      // From the nearer end, so that its digits are kept.
      const double distance = half * std::exp(-std::abs(sinh)) / std::cosh(sinh);
      const double x = sinh < 0 ? from + distance : to - distance;
      const double weight = std::cosh(step * i) * std::numbers::pi / 2 / (std::cosh(sinh) * std::cosh(sinh));
      if (distance > 0 && weight > 0) sum += integrand(x) * weight;
    }
    return sum * step * half;
  };
  return (integral(low, kink) + integral(kink, high)) / (sigma * std::sqrt(2 * std::numbers::pi));
}

struct Few {
  const char* name;
  double q, sigma, delta;
};

void PrintTo(const Few& c, std::ostream* out) { *out << c.name; }

class FewSteps : public testing::TestWithParam<std::tuple<Few, Effort>> {
 protected:
  EpsilonBound after(int64_t steps) const {
    const auto& [c, effort] = GetParam();
    return charged("contour", {"", {{c.q, c.sigma, steps}}, c.delta, 0, 0})->epsilon(Delta(c.delta), effort);
  }
};

TEST_P(FewSteps, EveryAnswerIsCertifiedAndNoneFallsBelowTheOneBefore) {
  double before = 0;
  for (const int64_t steps : {1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 21, 40}) {
    const EpsilonBound found = after(steps);
    EXPECT_FALSE(by_renyi(found)) << steps << ": " << found.upper;
    EXPECT_GE(found.upper, before) << steps;
    // What a grid of 2^15 points resolves at these settings, and one of 2^21.
    const double mesh = std::get<1>(GetParam()) == Effort::kQuick ? 2e-4 : 5e-6;
    EXPECT_LT(found.upper - found.lower, 1e-3 * found.upper + mesh) << steps;
    before = found.upper;
  }
}

TEST_P(FewSteps, TwoAreOneIntegratedOverTheOther) {
  const auto& [c, effort] = GetParam();
  const EpsilonBound found = after(2);
  const auto truth = [&](double at) {
    return std::max(delta_of_two(Direction::kRemove, {c.q, c.sigma}, at),
                    delta_of_two(Direction::kAdd, {c.q, c.sigma}, at));
  };
  // delta(epsilon) falls: 1e-9 for the integral's rounding, of losses near 4 and exponents near 100, and its tails.
  EXPECT_LE(truth(found.upper), c.delta * (1 + 1e-9));
  if (found.lower > 0) {
    EXPECT_GE(truth(found.lower), c.delta * (1 - 1e-9));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, FewSteps,
    testing::Combine(testing::Values(Few{"TinyRateLittleNoise", 1e-5, 0.6, 1e-6}, Few{"TinyRate", 1e-5, 1, 1e-6},
                                     Few{"TinyRateMuchNoise", 1e-5, 4, 1e-6}, Few{"OneTextOf48", 1.0 / 48, 0.62, 1e-6},
                                     Few{"LargeRate", 0.3, 1.2, 1e-5}, Few{"TinyDelta", 1e-3, 0.8, 1e-20}),
                     testing::Values(Effort::kQuick, Effort::kTight)),
    [](const auto& c) {
      return std::string(std::get<0>(c.param).name) + (std::get<1>(c.param) == Effort::kQuick ? "Quick" : "Tight");
    });

// Anywhere a run may be: whatever engine answers, it is not Rényi's bound, and line and grid never contradict (then
// neither would be trusted, and Rényi's would be left).
class Anywhere : public testing::TestWithParam<int> {};

TEST_P(Anywhere, TheAnswerIsCertifiedAndNarrow) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const auto between = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  for (int i = 0; i < 8;) {
    const double q = std::pow(10, between(-7, 0));
    const double sigma = std::pow(10, between(-1, 2));
    const auto steps = static_cast<int64_t>(std::pow(10, between(0, 7)));
    const double delta = std::pow(10, between(-30, -3));
    const double renyi = epsilon(q, sigma, steps, delta, "rdp").upper;
    if (!(renyi < 1500)) continue;
    ++i;
    const EpsilonBound found =
        charged("contour", {"", {{q, sigma, steps}}, delta, 0, 0})->epsilon(Delta(delta), Effort::kQuick);
    EXPECT_FALSE(by_renyi(found)) << q << ' ' << sigma << ' ' << steps << ' ' << delta;
    EXPECT_LE(found.lower, found.upper);
    EXPECT_LE(found.upper, renyi * (1 + 1e-12));
  }
}

INSTANTIATE_TEST_SUITE_P(Random, Anywhere, testing::Range(0, 12));

// ---------------------------------------------------------------------------------------------------------------------
// Properties, at random settings. Bounds are compared, so that each claim is exact.

struct Setting {
  double q, sigma;
  int64_t steps;
  double delta;
};

Setting random_setting(std::mt19937_64& random) {
  const auto between = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  return {std::pow(10, between(-4, -0.1)), std::pow(10, between(-0.3, 1)),
          static_cast<int64_t>(std::pow(10, between(1.5, 5))), std::pow(10, between(-16, -3))};
}

double lower(const Setting& s) { return epsilon(s.q, s.sigma, s.steps, s.delta).lower; }
double upper(const Setting& s) { return epsilon(s.q, s.sigma, s.steps, s.delta).upper; }

class ContourProperty : public testing::TestWithParam<int> {
 protected:
  ContourProperty() : random_(static_cast<uint64_t>(GetParam())), setting_(random_setting(random_)) {
    std::ostringstream text;
    text << "q " << setting_.q << " sigma " << setting_.sigma << " steps " << setting_.steps << " delta "
         << setting_.delta;
    trace_ = text.str();
  }
  std::mt19937_64 random_;
  Setting setting_;
  std::string trace_;
};

TEST_P(ContourProperty, LessPrivateSettingsNeverCostLess) {
  SCOPED_TRACE(trace_);
  const double here = lower(setting_);
  Setting more = setting_;
  more.q = std::min(1.0, more.q * 1.01);
  EXPECT_LE(here, upper(more));
  more = setting_;
  more.sigma /= 1.01;
  EXPECT_LE(here, upper(more));
  more = setting_;
  more.steps += 1 + more.steps / 100;
  EXPECT_LE(here, upper(more));
  more = setting_;
  more.delta /= 1.1;
  EXPECT_LE(here, upper(more));
}

TEST_P(ContourProperty, DeltaAndEpsilonAreInverse) {
  SCOPED_TRACE(trace_);
  const auto engine = charged("contour", {"", {{setting_.q, setting_.sigma, setting_.steps}}, 0, 0, 0});
  const EpsilonBound found = engine->epsilon(Delta(setting_.delta));
  if (found.estimate == 0) return;
  const DeltaBound back = engine->delta(Epsilon(found.estimate));
  EXPECT_LE(back.lower, back.upper);
  EXPECT_NEAR(back.estimate / setting_.delta, 1, 1e-6);
}

TEST_P(ContourProperty, PhasesInAnyOrderGiveTheSameBits) {
  SCOPED_TRACE(trace_);
  const Event first = sampled(setting_.q, setting_.sigma);
  const Event second = sampled(setting_.q / 2, setting_.sigma * 1.1);
  const auto one = make_accountant("contour", Adjacency::kZeroOut);
  const auto other = make_accountant("contour", Adjacency::kAddOrRemove);
  one->compose(first, setting_.steps);
  one->compose(second, setting_.steps);
  other->compose(second, setting_.steps - 7);
  other->compose(first, setting_.steps);
  other->compose(second, 7);
  EXPECT_EQ(one->epsilon(Delta(setting_.delta)).upper, other->epsilon(Delta(setting_.delta)).upper);
  EXPECT_GE(one->epsilon(Delta(setting_.delta)).upper, lower(setting_));
}

TEST_P(ContourProperty, RenyiIsNeverBelow) {
  SCOPED_TRACE(trace_);
  const double renyi = epsilon(setting_.q, setting_.sigma, setting_.steps, setting_.delta, "rdp").upper;
  EXPECT_LE(lower(setting_), renyi);
  EXPECT_LE(upper(setting_), renyi * (1 + 1e-12));
}

INSTANTIATE_TEST_SUITE_P(Random, ContourProperty, testing::Range(0, 24));

TEST(Contour, ReleasesOfOnePartCostNoMoreThanAll) {
  const auto part = make_accountant("contour", Adjacency::kZeroOut);
  part->compose(sampled(0.02, 1.3), 2000);
  const auto all = part->clone();
  all->compose(GaussianEvent{NoiseMultiplier(40)}, 3);
  EXPECT_LT(part->epsilon(Delta(1e-6)).upper, all->epsilon(Delta(1e-6)).lower);
}

// Which direction decides: removing here, and adding is far below; both are looked at.
TEST(Contour, BothDirectionsAreBounded) {
  EXPECT_EQ(epsilon(0.01, 0.3, 1000, 1e-6).direction, "remove");
  const std::vector<ComposedRelease> phases = {{{0.01, 0.3}, 1000}};
  const double adding = 8.72;  // as the reference states it, to three digits
  const auto saddle = saddle_of_epsilon(Direction::kAdd, phases, adding);
  ASSERT_TRUE(saddle);
  const auto line = ContourLine::make(Direction::kAdd, phases, *saddle, adding, std::log(1e-6), 0, 100'000'000);
  ASSERT_TRUE(line);
  EXPECT_NEAR(std::log(line->at(adding).delta / 1e-6) / *saddle, 0, 0.005);
}

TEST(Contour, EpsilonIsZeroWhereDeltaAloneSuffices) {
  const EpsilonBound found = epsilon(1e-4, 5, 100, 0.01);
  EXPECT_EQ(found.upper, 0);
  EXPECT_EQ(found.lower, 0);
}

TEST(Contour, AnAdaptiveClippingStepIsAGaussianWithBothNoises) {
  // 1/2² + 1/(2·10)² = 1/sigma²
  const auto adaptive = make_accountant("contour", Adjacency::kZeroOut);
  adaptive->compose(AdaptiveClippingEvent{SamplingRate(0.02), NoiseMultiplier(2), NoiseMultiplier(10)}, 500);
  const double together = 1 / std::sqrt(1.0 / 4 + 1.0 / 400);
  EXPECT_NEAR(adaptive->epsilon(Delta(1e-6)).estimate, epsilon(0.02, together, 500, 1e-6).estimate, 1e-12);
  EXPECT_GT(adaptive->epsilon(Delta(1e-6)).lower, epsilon(0.02, 2, 500, 1e-6).upper);
}

TEST(Contour, ReplacingOneHalvesTheNoiseOfAnUnsampledGaussian) {
  const auto replaced = make_accountant("contour", Adjacency::kReplaceOne);
  replaced->compose(GaussianEvent{NoiseMultiplier(4)}, 1);
  EXPECT_NEAR(replaced->epsilon(Delta(1e-6)).estimate, epsilon(1, 2, 1, 1e-6).estimate, 1e-12);
}

}  // namespace
}  // namespace ghostshard::accountant
