// Codes of weights: beside float64 twins from the contract's words, and the same bits on every device and for every cut
// that cuts no stretch.
#include "kernels/coded_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/backend.h"

namespace ghostshard::kernels {
namespace {

using backend::there;

constexpr double kUlp = 0x1p-24;  // float32's unit roundoff

struct Coded {
  at::Tensor codes, scales;
};
Coded encoded(const at::Tensor& weights, WeightCode code) {
  const auto on = at::device(backend::device());
  Coded c{.codes = at::full({weights.numel()}, 77, on.dtype(at::kByte)),
          .scales = at::full({weight_stretches(weights.numel())}, -1, on.dtype(at::kFloat))};
  encode_weights(there(weights), code, c.codes, c.scales);
  return c;
}
at::Tensor decoded(const Coded& c, WeightCode code, at::ScalarType type = at::kFloat) {
  const at::Tensor values = at::full({c.codes.numel()}, 3, at::device(backend::device()).dtype(type));
  decode_weights(c.codes, c.scales, code, values);
  return values.cpu();
}
at::Tensor round_trip(const at::Tensor& weights, WeightCode code) { return decoded(encoded(weights, code), code); }

// The numbers that a stretch may have, for a scale of 1.
std::vector<double> numbers(WeightCode code) {
  std::vector<double> all;
  if (code == WeightCode::kInt8) {
    for (int k = -127; k <= 127; ++k) all.push_back(k);
    return all;
  }
  for (int exponent = 0; exponent < 16; ++exponent) {  // 4 bits, of bias 7
    for (int fraction = 0; fraction < 8; ++fraction) {
      if (exponent == 15 && fraction == 7) continue;  // no number
      const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
      all.push_back(value);
      all.push_back(-value);
    }
  }
  return all;
}

struct WeightCase {
  const char* name;
  WeightCode code;
  double most;  // of the numbers
};
void PrintTo(const WeightCase& c, std::ostream* out) { *out << c.name; }
class CodedWeights : public testing::TestWithParam<WeightCase> {};
INSTANTIATE_TEST_SUITE_P(, CodedWeights,
                         testing::Values(WeightCase{"Int8", WeightCode::kInt8, 127},
                                         WeightCase{"Float8", WeightCode::kFloat8, 448}),
                         [](const auto& test) { return std::string(test.param.name); });

// Of many sizes, some of them in the middle between two numbers.
at::Tensor some_weights(int64_t n) {
  at::manual_seed(8);
  const at::Tensor sizes = at::pow(10.0, at::rand({n}) * -4);
  return (at::randn({n}) * sizes).to(at::kFloat);
}

TEST_P(CodedWeights, AreTheNearestNumbersOfTheContractTimesTheScale) {
  const auto [name, code, most] = GetParam();
  const at::Tensor weights = some_weights(5 * kWeightStretch + 17);
  const Coded c = encoded(weights, code);
  const at::Tensor values = decoded(c, code), scales = c.scales.cpu();
  const auto all = numbers(code);
  for (int64_t i = 0; i < weights.numel(); ++i) {
    const int64_t s = i / kWeightStretch, first = s * kWeightStretch;
    const at::Tensor stretch = weights.narrow(0, first, std::min<int64_t>(kWeightStretch, weights.numel() - first));
    const double largest = stretch.abs().max().item<float>(), scale = scales[s].item<float>();
    ASSERT_NEAR(scale, largest / most, kUlp * largest / most);
    const double w = weights[i].item<float>(), found = values[i].item<float>();
    double nearest = HUGE_VAL;
    for (const double number : all) nearest = std::min(nearest, std::abs(w - number * scale));
    // The quotient is rounded before it is compared with the middle of two numbers, and the product after that.
    EXPECT_LE(std::abs(found - w), nearest + 3 * kUlp * std::abs(w)) << "element " << i << " of " << w;
    const double bound = code == WeightCode::kInt8 ? scale / 2 : std::max(0x1p-4 * std::abs(w), 0x1p-10 * scale);
    EXPECT_LE(std::abs(found - w), bound + 4 * kUlp * largest) << "element " << i;
  }
}

TEST_P(CodedWeights, OfEveryNumberAreThatNumber) {
  const auto [name, code, most] = GetParam();
  std::vector<float> values;
  for (const double number : numbers(code)) values.push_back(static_cast<float>(number));
  ASSERT_LE(values.size(), static_cast<size_t>(kWeightStretch));
  const at::Tensor weights = at::tensor(values);
  EXPECT_TRUE(at::equal(round_trip(weights, code), weights));
}

TEST_P(CodedWeights, HalfwayGoToTheEvenNumber) {
  const auto [name, code, most] = GetParam();
  // A scale of 1: the largest number is there too.
  const std::vector<float> between = code == WeightCode::kInt8
                                         ? std::vector<float>{127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 126.5F}
                                         : std::vector<float>{448, 17, 19, -17, 0x1p-10F, 3 * 0x1p-10F, 432};
  const std::vector<float> even = code == WeightCode::kInt8 ? std::vector<float>{127, 0, 2, 2, 0, -2, 126}
                                                            : std::vector<float>{448, 16, 20, -16, 0, 0x1p-8F, 448};
  EXPECT_TRUE(at::equal(round_trip(at::tensor(between), code), at::tensor(even)))
      << round_trip(at::tensor(between), code);
}

TEST_P(CodedWeights, InBfloat16AreTheSameRoundedOnce) {
  const WeightCode code = GetParam().code;
  const Coded c = encoded(some_weights(3 * kWeightStretch + 5), code);
  EXPECT_TRUE(at::equal(decoded(c, code, at::kBFloat16), decoded(c, code).to(at::kBFloat16)));
}

TEST_P(CodedWeights, OfACutBetweenStretchesAreTheWholesBits) {
  const WeightCode code = GetParam().code;
  const at::Tensor weights = some_weights(4 * kWeightStretch + 100);
  const at::Tensor whole = round_trip(weights, code);
  for (int64_t cut = kWeightStretch; cut < weights.numel(); cut += kWeightStretch) {
    const at::Tensor parts = at::cat({round_trip(weights.narrow(0, 0, cut).clone(), code),
                                      round_trip(weights.narrow(0, cut, weights.numel() - cut).clone(), code)});
    EXPECT_TRUE(at::equal(parts, whole)) << cut;
  }
  EXPECT_FALSE(at::equal(round_trip(weights.narrow(0, 100, 600).clone(), code), whole.narrow(0, 100, 600)))
      << "a cut within a stretch shows, or the test sees nothing";
}

TEST_P(CodedWeights, OfZerosAreZerosAndOfNothingNothing) {
  const WeightCode code = GetParam().code;
  EXPECT_TRUE(at::equal(round_trip(at::zeros({300}), code), at::zeros({300})));
  EXPECT_EQ(round_trip(at::zeros({0}), code).numel(), 0);
  const float tiny = std::numeric_limits<float>::denorm_min();
  const at::Tensor found = round_trip(at::full({10}, tiny), code);
  EXPECT_TRUE(at::isfinite(found).all().item<bool>());
}

TEST_P(CodedWeights, ThatAreNotFiniteSpoilTheirStretchAlone) {
  const WeightCode code = GetParam().code;
  for (const float bad : {NAN, -NAN, HUGE_VALF, -HUGE_VALF}) {
    const at::Tensor weights = some_weights(3 * kWeightStretch);
    const at::Tensor well = round_trip(weights, code);
    weights[kWeightStretch + 9] = bad;
    const at::Tensor found = round_trip(weights, code);
    EXPECT_FALSE(at::isfinite(found.narrow(0, kWeightStretch, kWeightStretch)).any().item<bool>()) << bad;
    for (const int64_t s : {0, 2}) {
      EXPECT_TRUE(at::equal(found.narrow(0, s * kWeightStretch, kWeightStretch),
                            well.narrow(0, s * kWeightStretch, kWeightStretch)));
    }
  }
}

// On the host: a device's bits are compared with it. A value that is pinned: the arithmetic must not change unseen, or
// ranks of two builds would compute with different weights.
TEST_P(CodedWeights, HaveTheHostsBits) {
  const WeightCode code = GetParam().code;
  const at::Tensor weights = some_weights(2 * kWeightStretch + 31);
  const at::Tensor codes = at::empty({weights.numel()}, at::kByte), scales = at::empty({3}, at::kFloat);
  encode_weights(weights, code, codes, scales);
  const Coded found = encoded(weights, code);
  EXPECT_TRUE(at::equal(found.codes.cpu(), codes));
  EXPECT_TRUE(at::equal(found.scales.cpu(), scales));
  const at::Tensor values = at::empty({weights.numel()}, at::kFloat);
  decode_weights(codes, scales, code, values);
  EXPECT_TRUE(at::equal(decoded(found, code), values));
}

TEST(CodedWeightsRefuse, TensorsOfOtherShapesAndTypes) {
  const at::Tensor weights = at::zeros({300}), codes = at::zeros({300}, at::kByte), scales = at::zeros({2});
  const auto code = WeightCode::kInt8;
  EXPECT_THROW(encode_weights(weights.to(at::kBFloat16), code, codes, scales), std::invalid_argument);
  EXPECT_THROW(encode_weights(weights.view({3, 100}), code, codes, scales), std::invalid_argument);
  EXPECT_THROW(encode_weights(weights, code, at::zeros({299}, at::kByte), scales), std::invalid_argument);
  EXPECT_THROW(encode_weights(weights, code, codes, at::zeros({1})), std::invalid_argument);
  EXPECT_THROW(decode_weights(codes, scales, code, weights.to(at::kDouble)), std::invalid_argument);
  EXPECT_THROW(decode_weights(codes.to(at::kChar), scales, code, weights), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::kernels
