// Few steps, tiny rates: losses are rare and large beside epsilon, which is where a vertical line needs too many nodes
// and the grid stands in.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <sstream>

#include "accountant/engines/contour.h"
#include "accountant/gaussian/single_release.h"
#include "bench/accountant_rows.h"

namespace ghostshard::accountant {
namespace {

EpsilonBound epsilon(double q, double sigma, int64_t steps, double delta, const std::string& engine = "contour") {
  return charged(engine, {"", {{q, sigma, steps}}, delta, 0, 0})->epsilon(Delta(delta));
}

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

// Where each unit is drawn hardly ever: one cell of the grid holds almost everything. The width that is promised.
struct RareVisit {
  const char* name;
  double q, sigma;
  int64_t steps;
  double delta;
};

void PrintTo(const RareVisit& c, std::ostream* out) { *out << c.name; }

class RareVisits : public testing::TestWithParam<RareVisit> {};

TEST_P(RareVisits, BracketIsNarrowAndPrvMeetsIt) {
  const auto& [name, q, sigma, steps, delta] = GetParam();
  const EpsilonBound found = epsilon(q, sigma, steps, delta);
  EXPECT_LT(found.upper - found.lower, 2e-5);
  const EpsilonBound grid = epsilon(q, sigma, steps, delta, "prv");
  EXPECT_LT(grid.upper - grid.lower, 1e-4);
  EXPECT_LE(grid.lower, found.upper);
  EXPECT_GE(grid.upper, found.lower);
}

INSTANTIATE_TEST_SUITE_P(Runs, RareVisits,
                         testing::Values(RareVisit{"ThousandSteps", 1e-6, 0.4, 1000, 1e-9},
                                         RareVisit{"TwentySteps", 1.7e-5, 0.59, 22, 2e-12},
                                         // Delta consists of one release's loss: the mesh decides at once.
                                         RareVisit{"OneLargeLoss", 3.9e-7, 0.3, 24, 1.6e-11},
                                         RareVisit{"EpsilonBelowTheFirstMesh", 1.24e-7, 0.345, 118, 3e-7},
                                         RareVisit{"LittleNoise", 3.7e-6, 0.43, 14, 4.3e-7}),
                         [](const auto& c) { return c.param.name; });

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

}  // namespace
}  // namespace ghostshard::accountant
