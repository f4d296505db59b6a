// A line of large losses alone: their moments against the integral on the real axis, and delta against lines of all
// losses, numbers of 34 digits (contour_line_test.cpp has more of them) and what small losses can add.
#include "accountant/contour/large_losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "accountant/accountant.h"
#include "accountant/contour/contour_line.h"
#include "accountant/contour/line_bound.h"
#include "accountant/contour/small_losses.h"
#include "accountant/gaussian/chernoff.h"

namespace ghostshard::accountant {
namespace {

using LongComplex = std::complex<long double>;

struct Case {
  double q, sigma, c, log_s;
};
constexpr Case kCases[] = {{0.01, 0.5, 0.7, 0.3}, {1e-4, 0.3, 0.4, -2},  {0.3, 2, 3, 1.5},       {1e-6, 0.8, 20, 5},
                           {0.97, 1, 1, 0},       {2e-3, 0.15, 0.2, -9}, {3e-7, 0.1, 0.05, -30}, {1e-5, 3, 60, 8}};

// ∫ N(x; 0, sigma²)·w^(1+z)·share dx by the trapezoid rule, share = chi or 1 - chi.
LongComplex integral(const Case& at, long double c, long double t, bool of_large) {
  const long double sigma = at.sigma;
  const long double step = std::min(sigma / 40, sigma * sigma / 25);
  LongComplex sum = 0;
  for (long double x = -14 * sigma; x < 1 + c + 14 * sigma; x += step) {
    const long double u = (2 * x - 1) / (2 * sigma * sigma);
    const long double l = std::log1p(at.q * std::expm1(u));
    const long double sv = std::exp(at.log_s + std::log(static_cast<long double>(at.q)) + u);
    const long double kept = std::pow(-std::expm1(-sv), 16.0L);
    const long double small = sv > 1 ? -std::expm1(16 * std::log1p(-std::exp(-sv))) : 1 - kept;
    const long double modulus = std::exp(-x * x / (2 * sigma * sigma) + (1 + c) * l) * (of_large ? kept : small);
    sum += modulus * LongComplex(std::cos(t * l), std::sin(t * l));
  }
  return sum * step / (sigma * std::sqrt(2 * std::numbers::pi_v<long double>));
}

TEST(LargeLosses, TheirMomentIsTheIntegral) {
  for (const Case& at : kCases) {
    const ComposedRelease phase{{at.q, at.sigma}, 3};
    const LargeLosses large(phase, at.c, at.log_s);
    const long double m =
        std::exp(static_cast<long double>(real_moment(Direction::kRemove, phase.release, at.c).log_m));
    const double step = 0.37;
    large.sweep(step, 0, 200, [&](size_t k, std::complex<double> value, double error) {
      if (k % 23 != 0) return;
      const LongComplex found = integral(at, at.c, step * static_cast<double>(k), true) / m;
      const auto off = static_cast<double>(std::abs(found - LongComplex(value)));
      EXPECT_LE(off, error + 1e-17) << at.q << ' ' << at.sigma << " at " << k;
      EXPECT_LT(error, 1e-11) << at.q << ' ' << at.sigma;
    });
  }
}

TEST(LargeLosses, TheRestOfTheLineIsSmaller) {
  for (const Case& at : kCases) {
    const ComposedRelease phase{{at.q, at.sigma}, 3};
    const LargeLosses large(phase, at.c, at.log_s);
    for (const double t : {0.1, 1.0, 4.0, 20.0, 100.0}) {
      const double most = std::exp(large.log_rest(t));
      large.sweep(t / 3, 0, 120, [&](size_t k, std::complex<double> value, double error) {
        if (k < 3) return;
        EXPECT_LE(std::abs(value), most * (1 + 1e-9) + error) << at.q << ' ' << at.sigma << " from " << t;
      });
      EXPECT_LE(large.log_rest(2 * t), large.log_rest(t) + 1e-9);
    }
    EXPECT_LT(large.log_rest(1e4), -30);
  }
}

TEST(LargeLosses, TheMomentOfTheOthersIsBounded) {
  for (const Case& at : kCases)
    for (const double c : {0.3, 2.0, 11.0}) {
      const double most = log_small_moment({at.q, at.sigma}, 1000, c, at.log_s);
      if (!(most < 1e300)) continue;
      const auto found = static_cast<double>(std::log(integral(at, c, 0, false).real()));
      EXPECT_GE(most, found - 1e-12) << at.q << ' ' << at.sigma << ' ' << c;
      EXPECT_LE(most, found + 1e-6) << at.q << ' ' << at.sigma << ' ' << c;
    }
}

// A run that a line of all losses answers too.
const std::vector<ComposedRelease> kRun = {{{0.01, 0.5}, 20}, {{0.2, 2}, 4}};
constexpr double kEpsilon = 9;

ContourLine::Value of_all() {
  const auto c = saddle_of_epsilon(Direction::kRemove, kRun, kEpsilon);
  const double log_delta = chernoff_log_delta(Direction::kRemove, kRun, *c, kEpsilon) - 3;
  return ContourLine::make(Direction::kRemove, kRun, *c, kEpsilon, log_delta, 0, 2'000'000'000)->at(kEpsilon);
}

ContourLine::Value of_large(const LossCut& cut, double log_delta, double digits) {
  const auto c = saddle_of_epsilon(Direction::kRemove, kRun, kEpsilon);
  const auto line =
      ContourLine::make(Direction::kRemove, kRun, *c, kEpsilon, log_delta, 0, 2'000'000'000, digits, nullptr, &cut);
  return line ? line->at(kEpsilon) : ContourLine::Value{0, 0, {0, 1}};
}

TEST(LineOfLargeLosses, GivesTheSameDelta) {
  const ContourLine::Value all = of_all();
  ASSERT_GT(all.bracket.lower, 0);
  ASSERT_LT(all.bracket.upper - all.bracket.lower, 1e-8 * all.delta);
  const double log_delta = std::log(all.delta);
  auto cut = cut_losses(kRun, kEpsilon, log_delta, 25);
  ASSERT_TRUE(cut.has_value());
  EXPECT_LE(cut->log_small(kEpsilon), log_delta - 20);
  for (const bool whole : {false, true}) {
    // Whatever is not cut: Chernoff's bound on the rest then says less, and still holds.
    cut->whole = {false, whole};
    const ContourLine::Value found = of_large(*cut, log_delta, 30);
    EXPECT_LE(found.bracket.lower, all.bracket.upper);
    if (whole) continue;
    EXPECT_GE(found.bracket.upper, all.bracket.lower);
    EXPECT_LT(found.bracket.upper - found.bracket.lower, 1e-7 * all.delta);
  }
  for (const double digits : {0.5, 2.0, 5.0, 9.0}) {
    cut->whole = {false, false};
    const ContourLine::Value found = of_large(*cut, log_delta, digits);
    EXPECT_LE(found.bracket.lower, all.bracket.upper) << digits;
    EXPECT_GE(found.bracket.upper, all.bracket.lower) << digits;
  }
}

// With so few losses cut off that the others have a part in delta.
TEST(LineOfLargeLosses, WhatSmallOnesAddIsCounted) {
  const ContourLine::Value all = of_all();
  for (const double log_s : {-2.0, -5.0, -7.0, -9.0}) {
    LossCut cut{.log_s = log_s, .whole = {false, false}};
    for (const double c : {0.2, 0.5, 1.0, 2.0, 4.0}) {
      double k = 0;
      for (const ComposedRelease& phase : kRun)
        k += phase.count * log_small_moment(phase.release, phase.count, c, log_s);
      cut.moments.emplace_back(c, k);
    }
    const ContourLine::Value found = of_large(cut, std::log(all.delta), 25);
    EXPECT_LE(found.bracket.lower, all.bracket.upper) << log_s;
    EXPECT_GE(found.bracket.upper, all.bracket.lower) << log_s;
    if (log_s > -6) continue;
    EXPECT_LT(found.delta, 0.9 * all.delta) << log_s;
  }
}

TEST(LineOfLargeLosses, IsNotForOtherRuns) {
  EXPECT_FALSE(cut_losses(std::vector<ComposedRelease>{{{1, 1}, 3}}, 2, -10, 20).has_value());
  EXPECT_FALSE(cut_losses(std::vector<ComposedRelease>{{{0.1, 1}, 3}}, 0, -10, 20).has_value());
  EXPECT_FALSE(cut_losses(std::vector<ComposedRelease>{{{0.1, 0.011}, 3}}, 900, -10, 20).has_value());
}

// What took a grid of 2^18 losses and gave a bracket of 4e-6 (accountant_fuzz, few steps, 909/179) and of 2e-6.
TEST(LineOfLargeLosses, AnswersForFewStepsWithLittleNoise) {
  struct Row {
    double q, sigma;
    int64_t steps;
    double delta, low, high;
  };
  for (const Row& row : {Row{0.0017245469342951486, 0.2121249246432664, 7, 0.0023187451176947056, 7.9525147, 7.9525189},
                         Row{0.0015398381919149362, 0.24966793260946804, 40, 2.3773505530057803e-4, 11.93, 11.94}}) {
    const auto accountant = make_accountant("contour", Adjacency::kZeroOut);
    accountant->compose(PoissonGaussianEvent{SamplingRate(row.q), NoiseMultiplier(row.sigma)}, row.steps);
    const EpsilonBound found = accountant->epsilon(Delta(row.delta));
    EXPECT_LT(found.upper - found.lower, 1e-6);
    EXPECT_GT(found.upper, row.low);
    EXPECT_LT(found.lower, row.high);
    EXPECT_NE(found.detail.find("line"), std::string::npos) << found.detail;
  }
}

}  // namespace
}  // namespace ghostshard::accountant
