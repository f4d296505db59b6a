// Some masses in a square with the moments of many.
#include "accountant/contour/pair_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

namespace ghostshard::accountant {
namespace {

std::vector<PairMass> random_masses(size_t size) {
  std::mt19937_64 random(size);
  std::uniform_real_distribution<> place(-1, 1);
  std::vector<PairMass> masses;
  for (size_t i = 0; i < size; ++i)
    masses.push_back({place(random), place(random), 1 + static_cast<double>(random() % 50)});
  return masses;
}

// ∫ x^i·y^j, by itself.
template <class Masses>
long double moment(const Masses& masses, int i, int j) {
  long double sum = 0;
  for (const auto& [x, y, weight] : masses) sum += weight * std::pow(x, i) * std::pow(y, j);
  return sum;
}

TEST(PairRule, HasTheMomentsOfTheMeasure) {
  const std::vector<PairMass> measure = random_masses(700);
  const long double all = moment(measure, 0, 0);
  for (const Degrees& degrees : {Degrees{1, 1}, Degrees{4, 4}, Degrees{9, 3}, Degrees{2, 12}}) {
    const std::vector<Chosen> rule = pair_rule(measure, degrees);
    EXPECT_LE(rule.size(), degrees.products());
    std::vector<PairMass> chosen;
    std::set<size_t> indices;
    for (const auto& [index, weight] : rule) {
      EXPECT_GT(weight, 0);
      indices.insert(index);
      chosen.push_back({measure[index].x, measure[index].y, weight});
    }
    EXPECT_EQ(indices.size(), rule.size());
    // Weights are doubles: each of some hundred may err by half a rounding of all of it.
    for (int i = 0; i <= static_cast<int>(degrees.x); ++i)
      for (int j = 0; j <= static_cast<int>(degrees.last_y(static_cast<size_t>(i))); ++j)
        EXPECT_NEAR(static_cast<double>((moment(measure, i, j) - moment(chosen, i, j)) / all), 0, 1e-14)
            << i << ' ' << j;
    for (const double miss : pair_misses(measure, rule, degrees, 0)) EXPECT_LT(miss, 1e-14 * static_cast<double>(all));
    // Beyond, it has others.
    EXPECT_GT(std::abs(static_cast<double>(moment(measure, 0, 14) - moment(chosen, 0, 14))),
              1e-9 * static_cast<double>(all));
  }
}

TEST(PairRule, AWrongWeightShows) {
  const std::vector<PairMass> measure = random_masses(300);
  const Degrees degrees{3, 3};
  std::vector<Chosen> rule = pair_rule(measure, degrees);
  rule[2].weight += 1;
  const std::vector<double> misses = pair_misses(measure, rule, degrees, 0);
  ASSERT_EQ(misses.size(), degrees.products());
  EXPECT_GE(misses[0], 1 - 1e-10);
  EXPECT_GE(misses[1], std::abs(static_cast<double>(measure[rule[2].index].y)) - 1e-10);
}

TEST(PairRule, OfMassesOnALineIsARuleToo) {
  std::vector<PairMass> measure = random_masses(200);
  for (PairMass& mass : measure) mass.y = -mass.x;
  const std::vector<Chosen> rule = pair_rule(measure, {5, 5});
  EXPECT_LE(rule.size(), 6U);  // polynomials of one variable, up to degree 5
  for (const double miss : pair_misses(measure, rule, {5, 5}, 0)) EXPECT_LT(miss, 1e-9);
}

}  // namespace
}  // namespace ghostshard::accountant
