// The transform against its definition in long double: every length, both ways, and the bound that the grid's rounding
// is proven with.
#include "accountant/grid/real_transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace ghostshard::accountant {
namespace {

using LongComplex = std::complex<long double>;

std::vector<LongComplex> by_definition(const std::vector<double>& values) {
  const size_t n = values.size();
  std::vector<LongComplex> roots(n);
  for (size_t k = 0; k < n; ++k)
    roots[k] = std::polar(1.0L, -2 * std::numbers::pi_v<long double> * static_cast<long double>(k) / n);
  std::vector<LongComplex> spectrum(n / 2 + 1, 0);
  for (size_t k = 0; k <= n / 2; ++k)
    for (size_t j = 0; j < n; ++j) spectrum[k] += static_cast<long double>(values[j]) * roots[j * k % n];
  return spectrum;
}

// Masses as the grid has them: none negative, some far larger than others.
std::vector<double> masses(size_t n) {
  std::mt19937_64 random(n);
  std::vector<double> values(n);
  for (double& value : values) value = std::exp(std::normal_distribution<>(0, 3)(random));
  return values;
}

class Lengths : public testing::TestWithParam<size_t> {};

TEST_P(Lengths, EveryValueIsWithinTheRoundingOfTheSumOfModuli) {
  const size_t n = GetParam();
  const std::vector<double> values = masses(n);
  std::vector<std::complex<double>> spectrum;
  RealTransform(n).forward(values, spectrum);
  const std::vector<LongComplex> exact = by_definition(values);
  ASSERT_EQ(spectrum.size(), n / 2 + 1);
  const double allowed = RealTransform::rounding(n) * static_cast<double>(exact[0].real());
  for (size_t k = 0; k <= n / 2; ++k)
    EXPECT_LE(static_cast<double>(std::abs(LongComplex(spectrum[k]) - exact[k])), allowed) << k;
}

TEST_P(Lengths, TheWayBackIsWithinTheSameOfTheNorm) {
  const size_t n = GetParam();
  const std::vector<double> values = masses(n);
  std::vector<std::complex<double>> spectrum;
  RealTransform transform(n);
  transform.forward(values, spectrum);
  std::vector<double> back;
  transform.inverse(spectrum, back);
  ASSERT_EQ(back.size(), n);
  double off = 0;
  double squares = 0;
  for (size_t j = 0; j < n; ++j) {
    off += (back[j] - values[j]) * (back[j] - values[j]);
    squares += values[j] * values[j];
  }
  EXPECT_LE(std::sqrt(off), 2 * RealTransform::rounding(n) * std::sqrt(squares));
}

// The bound is one of the stages' number, and no safety margin hides a worse transform.
TEST_P(Lengths, TheRoundingIsThatOfItsStages) {
  const double stages = std::log2(static_cast<double>(GetParam()));
  EXPECT_LE(RealTransform::rounding(GetParam()), std::numeric_limits<double>::epsilon() * (2 * stages + 4));
}

INSTANTIATE_TEST_SUITE_P(PowersOfTwo, Lengths, testing::Values(4, 8, 16, 32, 64, 1024, 2048, 4096));

TEST(RealTransform, OfOneImpulseIsOneTurn) {
  const size_t n = size_t{1} << 15;
  std::vector<double> values(n, 0);
  values[3] = 1;
  std::vector<std::complex<double>> spectrum;
  RealTransform(n).forward(values, spectrum);
  for (size_t k = 0; k <= n / 2; ++k) {
    const LongComplex exact = std::polar(
        1.0L, -2 * std::numbers::pi_v<long double> * static_cast<long double>(3 * k % n) / static_cast<long double>(n));
    EXPECT_LE(static_cast<double>(std::abs(LongComplex(spectrum[k]) - exact)), RealTransform::rounding(n)) << k;
  }
}

}  // namespace
}  // namespace ghostshard::accountant
