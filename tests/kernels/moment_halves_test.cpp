// AdamW on moments in bfloat16: rounding at random keeps the mean, its bits follow from the element alone, and the rule
// beside a twin that rounds float32 moments one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/quantised_moments.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;

MomentHalves zero_halves(int64_t n, uint64_t first_element = 0) {
  const auto options = at::dtype(at::kBFloat16).device(backend::device());
  return {
      .first = at::zeros({n}, options), .second = at::zeros({n}, options), .stream = 0, .first_element = first_element};
}

TEST(RoundingToBfloat16, TakesANeighbourAndKeepsTheMeanExactly) {
  // All 65,536 values of the random bits: their sum is the number's own, to the last digit of float64.
  for (const float value : {1.0F, 1.00390625F, 3.14159274F, -3.14159274F, 1e-30F, -7.7e30F, 1e-40F, 0.0F, -0.0F}) {
    const double below = std::abs(static_cast<double>(from_bfloat16(round_to_bfloat16(value, 0))));
    const double above = std::abs(static_cast<double>(from_bfloat16(round_to_bfloat16(value, 0xffff))));
    double sum = 0;
    for (uint32_t random = 0; random <= 0xffff; ++random) {
      const double found = from_bfloat16(round_to_bfloat16(value, random));
      EXPECT_TRUE(std::abs(found) == below || std::abs(found) == above) << value;
      sum += found;
    }
    EXPECT_EQ(sum / 65536, static_cast<double>(value));
    EXPECT_LE(above - below, std::max(std::abs(static_cast<double>(value)) / 128, 1e-40)) << value;
  }
  for (const float value : {HUGE_VALF, -HUGE_VALF}) EXPECT_EQ(from_bfloat16(round_to_bfloat16(value, 0xffff)), value);
  const float quiet = __builtin_bit_cast(float, 0x7f800001U);  // a NaN whose upper half alone would be infinite
  EXPECT_TRUE(std::isnan(from_bfloat16(round_to_bfloat16(quiet, 0))));
}

TEST(RoundingBits, AreUniformAndDifferFromStepToStepAndFromParameterToParameter) {
  constexpr int64_t kElements = 1 << 16;
  const auto mean_of = [&](const auto& number) {
    double sum = 0;
    for (int64_t i = 0; i < kElements; ++i) sum += number(static_cast<uint64_t>(i));
    return sum / kElements;
  };
  // A mean of 65,536 uniform numbers has a standard deviation of 1/sqrt(12·65536) = 0.0011; five of them.
  const double bound = 5 / std::sqrt(12.0 * kElements);
  const auto unit = [](uint32_t bits) { return (bits + 0.5) / 65536; };
  for (const uint32_t stream : {rounding_stream(0, 1), rounding_stream(0, 2), rounding_stream(1, 1)}) {
    EXPECT_NEAR(mean_of([&](uint64_t i) { return unit(rounding_bits(stream, i) & 0xffffU); }), 0.5, bound);
    EXPECT_NEAR(mean_of([&](uint64_t i) { return unit(rounding_bits(stream, i) >> 16); }), 0.5, bound);
  }
  // Products of two independent ones that are centred: standard deviation 1/(12·256).
  const auto correlation = [&](uint32_t a, uint32_t b, uint64_t apart) {
    return mean_of([&](uint64_t i) {
      return (unit(rounding_bits(a, i) & 0xffffU) - 0.5) * (unit(rounding_bits(b, i + apart) & 0xffffU) - 0.5);
    });
  };
  const uint32_t first = rounding_stream(0, 1);
  const double correlation_bound = 5 / (12 * 256.0);
  EXPECT_NEAR(correlation(first, rounding_stream(0, 2), 0), 0, correlation_bound) << "steps";
  EXPECT_NEAR(correlation(first, rounding_stream(1, 1), 0), 0, correlation_bound) << "parameters";
  EXPECT_NEAR(correlation(first, first, 1), 0, correlation_bound) << "elements";
  EXPECT_NEAR(correlation(first, first, uint64_t{1} << 32), 0, correlation_bound) << "elements far apart";
  EXPECT_NEAR(mean_of([&](uint64_t i) {
                const uint32_t bits = rounding_bits(first, i);
                return (unit(bits & 0xffffU) - 0.5) * (unit(bits >> 16) - 0.5);
              }),
              0, correlation_bound)
      << "the two moments";
}

struct HalvesCase {
  const char* name;
  AdamWStep options;
  int64_t elements;
};
void PrintTo(const HalvesCase& c, std::ostream* out) { *out << c.name; }
class MomentsInSixteenBits : public testing::TestWithParam<HalvesCase> {};
INSTANTIATE_TEST_SUITE_P(, MomentsInSixteenBits,
                         testing::Values(HalvesCase{"plain", {.learning_rate = 0.01, .weight_decay = 0.1}, 1000},
                                         HalvesCase{"one_element", {}, 1},
                                         HalvesCase{
                                             "known_error", {.learning_rate = 0.01, .error_variance = 1.0}, 700}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(MomentsInSixteenBits, AreTheFloat32RulesRoundedAtRandomForEveryCut) {
  const int64_t n = GetParam().elements, cut = n / 3;
  const auto terms = [&](int64_t step) {
    AdamWStep options = GetParam().options;
    options.step = step;
    return adamw_terms(options);
  };
  const auto gradient = [&](int64_t step) {
    return at::arange(n, at::kFloat).mul_(0.37F).add_(static_cast<double>(step)).sin_();
  };
  const at::Tensor weights = there(at::linspace(-1, 1, n)), parts = weights.clone();
  MomentHalves whole = zero_halves(n), front = zero_halves(cut),
               back = zero_halves(n - cut, static_cast<uint64_t>(cut));
  const at::Tensor expected = at::linspace(-1, 1, n), first = at::zeros({n}), second = at::zeros({n});
  for (int64_t step = 1; step <= 6; ++step) {
    const at::Tensor g = there(gradient(step));
    whole.stream = front.stream = back.stream = rounding_stream(7, step);
    adamw_step(terms(step), weights, g, whole);
    adamw_step(terms(step), parts.narrow(0, 0, cut), g.narrow(0, 0, cut), front);
    adamw_step(terms(step), parts.narrow(0, cut, n - cut), g.narrow(0, cut, n - cut), back);
    // The slow twin: the float32 rule, then every moment rounded by itself.
    adamw_step(terms(step), expected, gradient(step), first, second);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t random = rounding_bits(whole.stream, static_cast<uint64_t>(i));
      float& m = first.mutable_data_ptr<float>()[i];
      float& v = second.mutable_data_ptr<float>()[i];
      m = from_bfloat16(round_to_bfloat16(m, random & 0xffffU));
      v = from_bfloat16(round_to_bfloat16(v, random >> 16));
    }
    ASSERT_TRUE(oracle::same_bits(weights.cpu(), expected)) << step;
    ASSERT_TRUE(oracle::same_bits(parts.cpu(), expected)) << step;
    ASSERT_TRUE(at::equal(whole.first.cpu().to(at::kFloat), first)) << step;
    ASSERT_TRUE(at::equal(whole.second.cpu().to(at::kFloat), second)) << step;
    ASSERT_TRUE(at::equal(at::cat({front.second, back.second}).cpu(), whole.second.cpu())) << step;
  }
}

// A gradient of 1 and a second moment that is there already: it moves by 0.001 of itself a step, an eighth of the
// distance of its neighbours. Rounded to the nearest it would never move.
TEST(MomentInSixteenBits, FollowsWhatIsSmallerThanItsRounding) {
  constexpr int64_t kElements = 4096, kSteps = 1000;
  MomentHalves halves = zero_halves(kElements);
  halves.second.fill_(1.0);
  const at::Tensor weights = there(at::zeros({kElements})), g = there(at::full({kElements}, std::sqrt(2.0F)));
  for (int64_t step = 1; step <= kSteps; ++step) {
    halves.stream = rounding_stream(0, step);
    adamw_step(adamw_terms({.step = step}), weights, g, halves);
  }
  const double expected = 2 - std::pow(0.999, kSteps);
  // Each step's rounding has a standard deviation of at most 2^-8, half of its distance of 2^-7; over 1/(1 − 0.999²) =
  // 500 steps 0.087, and over 4,096 elements 0.0014; five of them.
  EXPECT_NEAR(halves.second.to(at::kFloat).mean().item<double>(), expected, 5 * 0.0014);
  const double spread = halves.second.to(at::kFloat).std().item<double>();
  EXPECT_LT(spread, 0.087 * 1.1);
  EXPECT_GT(spread, 0.02) << "elements round by bits of their own";
}

TEST(MomentHalvesArguments, ThatDoNotFitAreRefused) {
  const at::Tensor w = there(at::zeros({300})), g = there(at::zeros({300}));
  EXPECT_NO_THROW(adamw_step(adamw_terms({}), w, g, zero_halves(300)));
  EXPECT_THROW(adamw_step(adamw_terms({}), w, g, zero_halves(299)), std::invalid_argument);
  MomentHalves wrong = zero_halves(300);
  wrong.second = there(at::zeros({300}));
  EXPECT_THROW(adamw_step(adamw_terms({}), w, g, wrong), std::invalid_argument) << "a float32 moment";
}

}  // namespace
}  // namespace ghostshard::kernels
