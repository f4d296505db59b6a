// Many sigmas as a few: against all of them, one by one.
#include "accountant/contour/sigma_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <random>
#include <string>

#include "accountant/contour/gauss_rule.h"
#include "accountant/gaussian/chernoff.h"

namespace ghostshard::accountant {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// The rule

std::vector<Mass> random_masses(size_t size) {
  std::mt19937_64 random(size);
  std::uniform_real_distribution<> place(-1, 1);
  std::vector<Mass> masses;
  for (size_t i = 0; i < size; ++i) masses.push_back({place(random), 1 + static_cast<double>(random() % 50)});
  return masses;
}

TEST(GaussRule, HasTheMomentsOfTheMeasure) {
  const std::vector<Mass> measure = random_masses(500);
  double all = 0;
  for (const Mass& mass : measure) all += mass.weight;
  for (const size_t size : {1, 2, 5, 12, 24}) {
    const std::vector<Mass> rule = gauss_rule(measure, size);
    ASSERT_EQ(rule.size(), size);
    for (const double miss : misses(measure, rule, 2 * size - 1, 0)) EXPECT_LT(miss, 1e-13 * all) << size;
    EXPECT_GT(misses(measure, rule, 2 * size, 0).back(), 1e-12 * all) << size;
  }
}

TEST(GaussRule, OfAFewMassesIsThese) {
  const std::vector<Mass> measure = random_masses(4);
  EXPECT_LE(gauss_rule(measure, 9).size(), 5U);
}

TEST(GaussRule, AWrongWeightShowsInEveryMoment) {
  const std::vector<Mass> measure = random_masses(100);
  std::vector<Mass> rule = gauss_rule(measure, 4);
  rule[1].weight += 1;
  EXPECT_GE(misses(measure, rule, 3, 0)[0], 1 - 1e-12);
  EXPECT_GE(misses(measure, rule, 3, 0)[1], std::abs(static_cast<double>(rule[1].x)) - 1e-12);
}

// ---------------------------------------------------------------------------------------------------------------------
// Moments of all releases and of a few

struct Schedule {
  const char* name;
  Direction direction;
  double q, first, last;
  int distinct, steps;
  double c;
};
void PrintTo(const Schedule& c, std::ostream* out) { *out << c.name; }

class ManySigmas : public testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override {
    const auto& [name, direction, q, first, last, distinct, steps, c] = GetParam();
    for (int i = 0; i < distinct; ++i) {  // sigma rises
      const double share = static_cast<double>(i) / (distinct - 1);
      all_.push_back({{q, first * std::pow(last / first, share)}, static_cast<double>(steps)});
    }
    const double variance = composed_moment(direction, all_, c).variance;
    rule_ = SigmaRule::make(direction, all_, c, 9 / std::sqrt(variance));
    ASSERT_TRUE(rule_.has_value());
    scale_ = 1 / std::sqrt(variance);
  }
  static std::vector<PhaseMoment> moments_of(const std::vector<ComposedRelease>& phases, double c) {
    std::vector<PhaseMoment> moments;
    for (const ComposedRelease& phase : phases) moments.emplace_back(GetParam().direction, phase, c, true);
    return moments;
  }
  struct Sum {
    std::complex<long double> log_m;  // as M(c) of all these is, too
    double error;
  };
  // Σ log M(c+it), by their values one by one.
  static Sum sum_at(const std::vector<ComposedRelease>& phases, std::vector<PhaseMoment>& moments, double c, double t) {
    Sum sum{0, 0};
    for (size_t i = 0; i < phases.size(); ++i) {
      const LineMoment::Value value = moments[i].pair().at<long double>(t);
      sum.log_m += value.log_power + moments[i].log_scale();
      sum.error += value.relative_error + phases[i].count * 1e-18;
    }
    (void)c;
    return sum;
  }

  std::vector<ComposedRelease> all_;
  std::optional<SigmaRule> rule_;
  double scale_ = 0;
};

TEST_P(ManySigmas, AFewHaveTheirMoment) {
  EXPECT_LT(rule_->phases().size(), 80U);
  for (const double c : {GetParam().c, 0.5 * GetParam().c, 1.2 * GetParam().c}) {
    auto each = moments_of(all_, c);
    auto few = moments_of(rule_->phases(), c);
    for (const double share : {0.0, 0.5, 1.0, 3.0, 6.0}) {
      const double t = share * scale_;
      if (t > rule_->reach(c)) continue;
      const Sum exact = sum_at(all_, each, c, t);
      const Sum found = sum_at(rule_->phases(), few, c, t);
      const auto apart = static_cast<double>(std::abs(exact.log_m - found.log_m));
      EXPECT_LE(apart, rule_->log_error(c, t) + exact.error + found.error) << c << ' ' << share;
    }
    EXPECT_LT(rule_->log_error(c, scale_), c > GetParam().c ? 1e-6 : 1e-9) << c;
  }
}

// A rule that was made for another line, and so for fewer nodes, misses what shows: no more than it says.
TEST_P(ManySigmas, WhatIsMissedShowsAndIsBounded) {
  const double made_for = 0.25 * GetParam().c;
  const auto coarse = SigmaRule::make(GetParam().direction, all_, made_for, 0.1 * scale_);
  ASSERT_TRUE(coarse.has_value());
  double most = 0;
  for (const double share_of_c : {0.5, 1.0, 1.5, 2.0}) {
    const double c = share_of_c * GetParam().c;
    auto each = moments_of(all_, c);
    auto few = moments_of(coarse->phases(), c);
    for (const double share : {0.0, 0.5, 1.0, 2.0, 4.0}) {
      const double t = share * scale_;
      if (t > coarse->reach(c)) continue;
      const Sum exact = sum_at(all_, each, c, t);
      const Sum found = sum_at(coarse->phases(), few, c, t);
      const auto apart = static_cast<double>(std::abs(exact.log_m - found.log_m));
      EXPECT_LE(apart, coarse->log_error(c, t) + exact.error + found.error) << c << ' ' << share;
      most = std::max(most, apart / (exact.error + found.error));
    }
  }
  const std::string name = GetParam().name;
  if (name != "Add" && name != "LargeRate") {  // there the line's own error hides it
    EXPECT_GT(most, 3);
  }
}

TEST_P(ManySigmas, TheRestOfTheLineIsBounded) {
  const double c = GetParam().c;
  auto each = moments_of(all_, c);
  auto few = moments_of(rule_->phases(), c);
  // Each phase by itself, with an angle of its own: what the bound of all together should hardly fall short of.
  const auto alone = [&few](double t) {
    double sum = 0;
    for (const PhaseMoment& moment : few) sum += moment.log_rest(t);
    return sum;
  };
  std::vector<double> each_alone;
  for (const double share : {0.0, 0.5, 1.0, 2.0, 4.0, 8.0}) each_alone.push_back(alone(share * scale_));
  rule_->align(few);
  long double of_few = 0;
  for (const PhaseMoment& moment : few) of_few += moment.log_scale();
  double before = 1;
  size_t index = 0;
  for (const double share : {0.0, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    const double bound = rule_->log_rest(few, c, share * scale_);
    for (const double further : {1.0, 1.1, 1.7}) {
      const Sum exact = sum_at(all_, each, c, share * further * scale_);
      EXPECT_GE(bound, static_cast<double>(exact.log_m.real() - of_few) - exact.error) << share << ' ' << further;
    }
    EXPECT_LE(bound, before);
    if (share >= 2) {  // nearer, no line ends
      EXPECT_LT(bound, 0.8 * each_alone[index]) << share;
    }
    ++index;
    before = bound;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ManySigmas,
                         testing::Values(Schedule{"Remove", Direction::kRemove, 0.02, 0.9, 2.7, 150, 10, 2},
                                         Schedule{"Add", Direction::kAdd, 0.02, 0.8, 2.4, 150, 10, 6},
                                         Schedule{"LittleChange", Direction::kRemove, 0.05, 1.0, 1.05, 100, 20, 4},
                                         Schedule{"LargeRate", Direction::kRemove, 0.4, 3, 8, 120, 4, 2},
                                         Schedule{"SmallRate", Direction::kAdd, 1e-3, 1, 2, 100, 100, 8}),
                         [](const auto& c) { return c.param.name; });

// ---------------------------------------------------------------------------------------------------------------------
// Rates of their own

class ManyRates : public testing::TestWithParam<Direction> {
 protected:
  static constexpr double kC = 3;
  static constexpr double kEnd = 8;
  // The rates rise, sigma is scattered.
  static std::vector<ComposedRelease> releases(int size, double of_rates, double of_sigmas) {
    std::vector<ComposedRelease> all;
    for (int i = 0; i < size; ++i)
      all.push_back({{0.02 * std::pow(of_rates, static_cast<double>(i) / (size - 1)),
                      1.2 * std::pow(of_sigmas, std::fmod(0.618 * i, 1))},
                     10.0});
    return all;
  }
  // Σ log M(c + it) and what it errs by.
  static std::pair<std::complex<long double>, double> sum_at(const std::vector<ComposedRelease>& phases, double t) {
    std::complex<long double> sum = 0;
    double error = 0;
    for (const ComposedRelease& phase : phases) {
      PhaseMoment moment(GetParam(), phase, kC, true);
      const LineMoment::Value value = moment.pair().at<long double>(t);
      sum += value.log_power + moment.log_scale();
      error += value.relative_error + phase.count * 1e-18;
    }
    return {sum, error};
  }
  const std::vector<ComposedRelease> all_ = releases(300, 1.1, 1.1);
};

TEST_P(ManyRates, AFewReleasesHaveTheirMoment) {
  const auto rule = SigmaRule::make(GetParam(), all_, kC, kEnd);
  ASSERT_TRUE(rule);
  EXPECT_LT(rule->phases().size(), 120U);
  for (const double t : {0.0, kEnd / 2, kEnd}) {
    const auto [exact, of_exact] = sum_at(all_, t);
    const auto [found, of_found] = sum_at(rule->phases(), t);
    EXPECT_LE(std::abs(exact - found), rule->log_error(kC, t) + of_exact + of_found) << t;
    EXPECT_LT(rule->log_error(kC, t), 1e-8) << t;
  }
}

// No more products are taken than the tolerance needs: what the others add shows in the error.
TEST_P(ManyRates, TheErrorIsThatOfTheProductsLeftOut) {
  const auto rule = SigmaRule::make(GetParam(), releases(300, 1.5, 1.3), 1e-3 * kC, 1e-3 * kEnd);
  ASSERT_TRUE(rule);
  EXPECT_LT(rule->phases().size(), 200U);
  EXPECT_GT(rule->log_error(1e-3 * kC, 1e-3 * kEnd), 1e-11);
  EXPECT_LT(rule->log_error(1e-3 * kC, 1e-3 * kEnd), 1e-8);
  EXPECT_TRUE(std::isinf(rule->log_error(1e-3 * kC, kEnd))) << "beyond the t that it was made for, nothing is said";
}

TEST_P(ManyRates, TheRestOfTheLineIsBounded) {
  const auto rule = SigmaRule::make(GetParam(), all_, kC, kEnd);
  ASSERT_TRUE(rule);
  std::vector<PhaseMoment> few;
  long double of_few = 0;
  for (const ComposedRelease& phase : rule->phases()) {
    few.emplace_back(GetParam(), phase, kC, true);
    of_few += few.back().log_scale();
  }
  rule->align(few);
  double before = 1;
  for (const double t : {kEnd / 2, kEnd, 2 * kEnd}) {
    const double bound = rule->log_rest(few, kC, t);
    const auto [exact, of_exact] = sum_at(all_, 1.1 * t);
    EXPECT_GE(bound, static_cast<double>(exact.real() - of_few) - of_exact) << t;
    EXPECT_LT(bound, before);
    before = bound;
  }
  EXPECT_LT(before, -2) << "no line would end";
}

INSTANTIATE_TEST_SUITE_P(Directions, ManyRates, testing::Values(Direction::kRemove, Direction::kAdd),
                         [](const auto& c) { return c.param == Direction::kRemove ? "Remove" : "Add"; });

// Its cells are cut in the order of sigma.
TEST(SigmaRule, RefusesReleasesOutOfOrder) {
  std::vector<ComposedRelease> all;
  for (int i = 0; i < 100; ++i) all.push_back({{0.02, 3 - 0.01 * i}, 10.0});
  EXPECT_FALSE(SigmaRule::make(Direction::kRemove, all, 2, 10));
}

// The moment of a cell's ellipse may exceed a double where those of its nodes do not: then the rest may be anything.
TEST(SigmaRule, SaysNothingOfTheRestWhereAnEllipseOverflows) {
  std::vector<ComposedRelease> all;
  for (int i = 0; i < 100; ++i) all.push_back({{0.02, 1 + 0.01 * i}, 10.0});
  const auto rule = SigmaRule::make(Direction::kRemove, all, 6, 10);
  ASSERT_TRUE(rule);
  const auto largest = [&](double c) { return real_moment(Direction::kRemove, all.front().release, c).log_m; };
  double low = 6;
  double high = 100;
  for (int i = 0; i < 60; ++i) (largest((low + high) / 2) < 690 ? low : high) = (low + high) / 2;
  std::vector<PhaseMoment> few;
  for (const ComposedRelease& phase : rule->phases()) few.emplace_back(Direction::kRemove, phase, low, true);
  rule->align(few);
  EXPECT_TRUE(std::isinf(rule->log_rest(few, low, 0)));
}

// Where β exceeds 1 nothing is said.
TEST(SigmaRule, SaysNothingFarOut) {
  std::vector<ComposedRelease> all;
  for (int i = 0; i < 100; ++i) all.push_back({{0.02, 1 + 0.01 * i}, 10.0});
  const auto rule = SigmaRule::make(Direction::kRemove, all, 6, 10);
  ASSERT_TRUE(rule);
  EXPECT_TRUE(std::isfinite(rule->log_error(6, 0.9 * rule->reach(6))));
  EXPECT_TRUE(std::isinf(rule->log_error(6, 100 * rule->reach(6))));
  EXPECT_TRUE(std::isinf(rule->log_error(2000, 0)));
}

}  // namespace
}  // namespace ghostshard::accountant
