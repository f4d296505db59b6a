// AdamW on 8-bit moments: the codes, the rule beside a float64 twin, and the same bits on every device and for every
// cut.
#include "kernels/quantised_moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/quantised_moments/host_loops.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;

constexpr double kUlp = 0x1p-24;  // float32's unit roundoff

// The slow twin of the codes, from the contract's words: half of all codes lie in (0.1, 1], a quarter in (0.01, 0.1],
// and so on, evenly within each decade; and zero.
std::vector<double> magnitudes(int bits) {
  std::vector<double> all{0};
  for (int level = 0; level < bits; ++level) {
    const double top = std::pow(10.0, level + 1 - bits), bottom = level == 0 ? 0 : top / 10;
    const int codes = 1 << level;
    for (int j = 1; j <= codes; ++j) all.push_back(bottom + (top - bottom) * j / codes);
  }
  return all;
}

struct CodeCase {
  const char* name;
  CodeSign sign;
  int bits;
};
void PrintTo(const CodeCase& c, std::ostream* out) { *out << c.name; }
class MomentCode : public testing::TestWithParam<CodeCase> {
 protected:
  static int codes() { return (1 << GetParam().bits) - 1; }
  static std::vector<float> decoded(const std::vector<uint8_t>& bytes, float scale) {
    std::vector<float> values(bytes.size());
    decode_stretch(bytes.data(), scale, GetParam().sign, values.data(), static_cast<int64_t>(bytes.size()));
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(, MomentCode,
                         testing::Values(CodeCase{"with_a_sign", CodeSign::kSigned, 7},
                                         CodeCase{"without_a_sign", CodeSign::kUnsigned, 8}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(MomentCode, HasTheMagnitudesOfTheContract) {
  std::vector<uint8_t> bytes;
  for (int code = 0; code <= codes(); ++code) bytes.push_back(static_cast<uint8_t>(code));
  const auto found = decoded(bytes, 1.0F);
  const auto expected = magnitudes(GetParam().bits);
  ASSERT_EQ(found.size(), expected.size());
  // Two constants, one product and one difference, each rounded once, in sizes up to ten times the code.
  for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], expected[k], 30 * kUlp * expected[k]) << k;
  EXPECT_EQ(found.front(), 0.0F);
  EXPECT_EQ(found.back(), 1.0F) << "a stretch's scale must survive";
  EXPECT_TRUE(std::is_sorted(found.begin(), found.end()));
}

TEST_P(MomentCode, TakesTheNearestMagnitude) {
  const auto all = magnitudes(GetParam().bits);
  std::vector<float> values{1.0F};  // the scale
  at::manual_seed(5);
  const at::Tensor exponents = at::rand({20000}).mul_(9);
  for (int64_t i = 0; i < exponents.numel(); ++i) values.push_back(std::pow(10.0F, -exponents[i].item<float>()));
  for (size_t at = 1; at < values.size(); at += kStretch - 1) {
    std::vector<float> stretch{1.0F};
    stretch.insert(stretch.end(), values.begin() + static_cast<ptrdiff_t>(at),
                   values.begin() + static_cast<ptrdiff_t>(std::min(values.size(), at + kStretch - 1)));
    std::vector<uint8_t> bytes(stretch.size());
    float scale = 0;
    encode_stretch(stretch.data(), GetParam().sign, bytes.data(), &scale, static_cast<int64_t>(bytes.size()));
    ASSERT_EQ(scale, 1.0F);
    const auto found = decoded(bytes, scale);
    for (size_t i = 0; i < stretch.size(); ++i) {
      double nearest = 2;
      for (const double m : all) nearest = std::min(nearest, std::abs(m - stretch[i]));
      // A value halfway between two codes may go either way by the roundings of the code's arithmetic, which are
      // relative to the decade's 128 steps at most.
      EXPECT_LE(std::abs(found[i] - stretch[i]), nearest + 64 * kUlp * stretch[i] + 1e-12) << stretch[i];
    }
  }
}

TEST_P(MomentCode, OfDecodedValuesIsTheSameAgain) {
  for (const float scale : {1.0F, 0.37F, 1.9e-30F, 3.3e30F}) {
    std::vector<uint8_t> bytes;
    for (int code = 0; code <= codes(); ++code) bytes.push_back(static_cast<uint8_t>(code));
    if (GetParam().sign == CodeSign::kSigned) {
      for (int code = 1; code <= codes(); ++code) bytes.push_back(static_cast<uint8_t>(-code));
    }
    const auto values = decoded(bytes, scale);
    std::vector<uint8_t> again(bytes.size());
    float scale_again = 0;
    encode_stretch(values.data(), GetParam().sign, again.data(), &scale_again, static_cast<int64_t>(again.size()));
    EXPECT_EQ(scale_again, scale);
    EXPECT_EQ(again, bytes) << scale;
  }
}

TEST_P(MomentCode, OfAStretchOfZerosIsZeros) {
  const std::vector<float> zeros(100, 0.0F);
  std::vector<uint8_t> bytes(100, 77);
  float scale = 3;
  encode_stretch(zeros.data(), GetParam().sign, bytes.data(), &scale, 100);
  EXPECT_EQ(scale, 0.0F);
  EXPECT_EQ(bytes, std::vector<uint8_t>(100, 0));
}

TEST(MomentCodeWithASign, KeepsAScaleThatIsNegative) {
  const std::vector<float> values{0.5F, -2.0F, 1.0F};
  std::vector<uint8_t> bytes(3);
  float scale = 0;
  encode_stretch(values.data(), CodeSign::kSigned, bytes.data(), &scale, 3);
  std::vector<float> found(3);
  decode_stretch(bytes.data(), scale, CodeSign::kSigned, found.data(), 3);
  EXPECT_EQ(found[1], -2.0F);
}

// ---------------------------------------------------------------------------------------------------------------------
// The rule

MomentCodes zero_codes(int64_t n, at::Device device) {
  const auto bytes = at::dtype(at::kByte).device(device);
  const auto floats = at::dtype(at::kFloat).device(device);
  return {.first = at::zeros({n}, bytes),
          .second = at::zeros({n}, bytes),
          .first_scale = at::zeros({stretches(n)}, floats),
          .second_scale = at::zeros({stretches(n)}, floats)};
}

// What is stored of one stretch of `first` and `second`, in float64, by the contract's formulas and
// torch.optim.AdamW's.
struct Twin {
  AdamWStep options;
  std::vector<double> weights, first, second;  // second: the excess
  void step(const at::Tensor& gradient) {
    const auto t = static_cast<double>(options.step);
    const double f = options.error_variance;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double g = gradient[static_cast<int64_t>(i)].item<float>();
      weights[i] -= options.learning_rate * options.weight_decay * weights[i];
      first[i] = options.beta1 * first[i] + (1 - options.beta1) * g;
      second[i] = options.beta2 * second[i] + (1 - options.beta2) * (g * g - f);
      const double moment = second[i] / (1 - std::pow(options.beta2, t)) + (options.subtract ? 0 : f);
      weights[i] -= options.learning_rate / (1 - std::pow(options.beta1, t)) * first[i] /
                    (std::sqrt(std::max(moment, options.floor * f)) + options.epsilon);
    }
  }
};

struct RuleCase {
  const char* name;
  AdamWStep options;
  int64_t elements;
};
void PrintTo(const RuleCase& c, std::ostream* out) { *out << c.name; }
class MomentRule : public testing::TestWithParam<RuleCase> {
 protected:
  static at::Tensor gradient(int64_t step) {
    at::manual_seed(100 + step);
    return at::randn({GetParam().elements}).add_(at::arange(GetParam().elements).mul(0.01).sin_());
  }
  static AdamWTerms terms(int64_t step) {
    AdamWStep options = GetParam().options;
    options.step = step;
    return adamw_terms(options);
  }
  static CodeSign second_sign() {
    return GetParam().options.error_variance > 0 ? CodeSign::kSigned : CodeSign::kUnsigned;
  }
};
INSTANTIATE_TEST_SUITE_P(
    , MomentRule,
    testing::Values(RuleCase{"plain", {.learning_rate = 0.01}, 1000},
                    RuleCase{"one_element", {.learning_rate = 0.01}, 1}, RuleCase{"one_stretch", {}, kStretch},
                    RuleCase{"one_more_than_a_stretch", {.weight_decay = 0.1}, kStretch + 1},
                    RuleCase{"other_betas", {.beta1 = 0.5, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.3}, 700},
                    RuleCase{"known_error", {.learning_rate = 0.01, .error_variance = 1.0}, 1000},
                    RuleCase{"known_error_subtracted",
                             {.learning_rate = 0.01, .error_variance = 0.5, .floor = 0.1, .subtract = true},
                             1000}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(MomentRule, InFloat32FollowsTheFloat64Twin) {
  const int64_t n = GetParam().elements;
  const at::Tensor start = at::linspace(-1, 1, n);
  const at::Tensor weights = there(start.clone()), first = there(at::zeros({n})), second = there(at::zeros({n}));
  Twin twin{GetParam().options, {}, std::vector<double>(n, 0), std::vector<double>(n, 0)};
  for (int64_t i = 0; i < n; ++i) twin.weights.push_back(start[i].item<float>());
  constexpr int64_t kSteps = 6;
  for (int64_t step = 1; step <= kSteps; ++step) {
    adamw_step(terms(step), weights, there(gradient(step)), first, second);
    twin.options.step = step;
    twin.step(gradient(step));
  }
  // Per step some eight roundings of numbers of about the gradient's size. Without a floor far from 0, the square root
  // of a moment that nearly cancels doubles relative errors at most; the excess's cancellation against F costs F/floor.
  const double f = GetParam().options.error_variance;
  const double condition = f > 0 ? 1 / GetParam().options.floor : 2;
  const double bound = 8 * kSteps * kUlp * condition * 4;
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(weights[i].item<float>(), twin.weights[static_cast<size_t>(i)], bound) << i;
    EXPECT_NEAR(first[i].item<float>(), twin.first[static_cast<size_t>(i)], bound) << i;
    EXPECT_NEAR(second[i].item<float>(), twin.second[static_cast<size_t>(i)], bound * 16) << i;
  }
}

TEST_P(MomentRule, InEightBitsIsTheFloat32RuleOnDecodedMoments) {
  const int64_t n = GetParam().elements;
  const at::Tensor weights = there(at::linspace(-1, 1, n));
  const MomentCodes codes = zero_codes(n, backend::device());
  const at::Tensor expected = at::linspace(-1, 1, n);
  const at::Tensor first = at::zeros({n}), second = at::zeros({n});
  const MomentCodes of_expected = zero_codes(n, at::kCPU);
  for (int64_t step = 1; step <= 6; ++step) {
    adamw_step(terms(step), weights, there(gradient(step)), codes);
    // The slow twin: whole float32 moments, decoded, updated and encoded one after the other.
    decode_moments(of_expected.first, of_expected.first_scale, CodeSign::kSigned, first);
    decode_moments(of_expected.second, of_expected.second_scale, second_sign(), second);
    adamw_step(terms(step), expected, gradient(step), first, second);
    encode_moments(first, CodeSign::kSigned, of_expected.first, of_expected.first_scale);
    encode_moments(second, second_sign(), of_expected.second, of_expected.second_scale);
    ASSERT_TRUE(oracle::same_bits(weights.cpu(), expected)) << step;
    ASSERT_TRUE(at::equal(codes.first.cpu(), of_expected.first)) << step;
    ASSERT_TRUE(at::equal(codes.second.cpu(), of_expected.second)) << step;
    ASSERT_TRUE(oracle::same_bits(codes.first_scale.cpu(), of_expected.first_scale)) << step;
    ASSERT_TRUE(oracle::same_bits(codes.second_scale.cpu(), of_expected.second_scale)) << step;
  }
}

TEST_P(MomentRule, DoesNotDependOnHowStretchesAreDealtOut) {
  const int64_t n = GetParam().elements;
  if (n <= kStretch) return;  // one stretch
  const MomentCodes whole = zero_codes(n, backend::device());
  const at::Tensor weights = there(at::linspace(-1, 1, n));
  struct Share {
    int64_t first, count;
    at::Tensor weights;
    MomentCodes codes;
  };
  std::vector<Share> shares;
  for (int64_t first = 0; first < n; first += kStretch) {
    const int64_t count = std::min<int64_t>(kStretch, n - first);
    shares.push_back({first, count, weights.narrow(0, first, count).clone(), zero_codes(count, backend::device())});
  }
  for (int64_t step = 1; step <= 4; ++step) {
    const at::Tensor g = there(gradient(step));
    adamw_step(terms(step), weights, g, whole);
    for (const Share& share : shares) {
      adamw_step(terms(step), share.weights, g.narrow(0, share.first, share.count), share.codes);
    }
  }
  for (const Share& share : shares) {
    EXPECT_TRUE(oracle::same_bits(share.weights.cpu(), weights.narrow(0, share.first, share.count).cpu()));
    EXPECT_TRUE(at::equal(share.codes.second, whole.second.narrow(0, share.first, share.count)));
  }
}

// Why the excess is stored: of errors with variance 1 the second moment is 1 within 3 %. Coded as it is, it cannot
// follow; coded as an excess it can.
TEST(MomentOfKnownError, IsFollowedAsAnExcessAndLostWithoutIt) {
  constexpr int64_t kElements = 4 * kStretch, kSteps = 3000;
  const auto error_of = [&](double variance) {
    const MomentCodes codes = zero_codes(kElements, at::kCPU);
    const at::Tensor weights = at::zeros({kElements});
    at::Tensor exact = at::zeros({kElements}, at::kDouble);
    at::manual_seed(9);
    for (int64_t step = 1; step <= kSteps; ++step) {
      const at::Tensor g = at::randn({kElements});
      adamw_step(adamw_terms({.step = step, .error_variance = variance}), weights, g, codes);
      exact.mul_(0.999).add_(g.to(at::kDouble).square_(), 0.001);
    }
    const at::Tensor found = at::zeros({kElements});
    decode_moments(codes.second, codes.second_scale, variance > 0 ? CodeSign::kSigned : CodeSign::kUnsigned, found);
    const double known = variance * (1 - std::pow(0.999, kSteps));
    return (found.to(at::kDouble) + known - exact).square_().mean().sqrt_().item<double>();
  };
  // The spread that is to be followed is sqrt(2·0.001/1.999) = 0.032. An excess' code step, 0.0005 to 0.001, is no more
  // than a step of the rule, so the error stays below the spread; without it steps are lost, the error exceeds the
  // spread, and the moment had better be a constant. (0.018 and 0.050 here.)
  EXPECT_LT(error_of(1.0), 0.025);
  EXPECT_GT(error_of(0.0), 0.040) << "then the excess would not be worth its trouble";
}

TEST(MomentOfKnownError, IsNeverBelowItsFloor) {
  // An element that dominates its stretch, beside others whose excess its code cannot resolve.
  at::Tensor g = at::full({kStretch}, 1e-4);
  const MomentCodes codes = zero_codes(kStretch, at::kCPU);
  const at::Tensor weights = at::zeros({kStretch});
  for (int64_t step = 1; step <= 50; ++step) {
    g[0] = 1e3;
    const at::Tensor before = weights.clone();
    adamw_step(adamw_terms({.learning_rate = 1, .step = step, .error_variance = 1.0}), weights, g, codes);
    const at::Tensor moved = (weights - before).abs();
    EXPECT_TRUE(moved.isfinite().all().item<bool>());
    EXPECT_LE(moved.narrow(0, 1, kStretch - 1).max().item<double>(), 1e-4 * 8 * 1.01) << "1/sqrt(1/64) at most";
  }
}

TEST(MomentRuleOfNothing, DoesNothing) {
  adamw_step(adamw_terms({}), there(at::empty({0})), there(at::empty({0})), zero_codes(0, backend::device()));
}

TEST(MomentArguments, ThatDoNotFitAreRefused) {
  const at::Tensor w = there(at::zeros({300})), g = there(at::zeros({300}));
  const auto terms = adamw_terms({});
  MomentCodes codes = zero_codes(300, backend::device());
  EXPECT_NO_THROW(adamw_step(terms, w, g, codes));
  EXPECT_THROW(adamw_step(terms, w, there(at::zeros({299})), codes), std::invalid_argument);
  EXPECT_THROW(adamw_step(terms, w.view({3, 100}), g.view({3, 100}), codes), std::invalid_argument);
  EXPECT_THROW(adamw_step(terms, w, g.to(at::kDouble), codes), std::invalid_argument);
  codes.second_scale = there(at::zeros({1}));
  EXPECT_THROW(adamw_step(terms, w, g, codes), std::invalid_argument) << "one scale for two stretches";
  EXPECT_THROW(adamw_step(terms, w, g, there(at::zeros({300})), there(at::zeros({2}))), std::invalid_argument);
}

struct WrongStep {
  const char* name;
  AdamWStep options;
};
class WrongSteps : public testing::TestWithParam<WrongStep> {};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
INSTANTIATE_TEST_SUITE_P(
    , WrongSteps,
    testing::Values(WrongStep{"rate_zero", {.learning_rate = 0}}, WrongStep{"rate_nan", {.learning_rate = kNaN}},
                    WrongStep{"beta1_one", {.beta1 = 1}}, WrongStep{"beta2_nan", {.beta2 = kNaN}},
                    WrongStep{"epsilon_zero", {.epsilon = 0}}, WrongStep{"decay_negative", {.weight_decay = -1}},
                    WrongStep{"step_zero", {.step = 0}}, WrongStep{"variance_negative", {.error_variance = -1}},
                    WrongStep{"variance_infinite", {.error_variance = HUGE_VAL}},
                    WrongStep{"nothing_left", {.error_variance = 1, .floor = 0, .subtract = true}}),
    [](const auto& test) { return std::string(test.param.name); });
TEST_P(WrongSteps, AreRefused) { EXPECT_THROW(adamw_terms(GetParam().options), std::invalid_argument); }

}  // namespace
}  // namespace ghostshard::kernels
