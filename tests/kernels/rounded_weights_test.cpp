// Weights rounded to bfloat16 at random: beside a twin that rounds one by one, without bias, alike for every cut, and
// by bits that neither moments nor other steps have.
#include "kernels/rounded_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/device/keyed_rounding.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;

at::Tensor rounded(const at::Tensor& values, uint32_t parameter, int64_t step, uint64_t first_element = 0) {
  const at::Tensor stored = there(at::zeros(values.sizes(), at::dtype(at::kBFloat16)));
  round_weights(there(values), parameter, step, first_element, stored);
  return stored.cpu();
}

// The next numbers of bfloat16 below and above, the same if the value is one.
double neighbour_below(double value) {
  const double unit = std::ldexp(1.0, std::ilogb(value) - 7);
  return std::floor(value / unit) * unit;
}

TEST(RoundedWeights, AreTheTwinsForEveryCut) {
  constexpr int64_t n = 1000;
  constexpr uint64_t kFirst = (uint64_t{1} << 32) - 100;  // across what 32 bits hold
  const at::Tensor values = at::arange(n, at::kFloat).mul(0.37F).add(0.1F).sin();
  const at::Tensor whole = rounded(values, 7, 3, kFirst);
  const uint32_t stream = rounding_bits(rounding_bits(0x85a308d3U, 7), 3);
  const at::Tensor twin = at::empty({n});
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t random = rounding_bits(stream, kFirst + static_cast<uint64_t>(i)) >> 16;
    const double value = values[i].item<float>();
    const double below = neighbour_below(std::abs(value)), unit = std::ldexp(1.0, std::ilogb(value) - 7);
    // Up with the probability of the part above the lower neighbour, in units of 2^-16 of their distance.
    const bool up = (std::abs(value) - below) / unit * 65536 + random >= 65536;
    twin[i] = std::copysign(below + (up ? unit : 0), value);
  }
  EXPECT_TRUE(at::equal(whole.to(at::kFloat), twin));
  for (const int64_t cut : {1, 333, 999}) {
    const at::Tensor parts =
        at::cat({rounded(values.narrow(0, 0, cut), 7, 3, kFirst),
                 rounded(values.narrow(0, cut, n - cut), 7, 3, kFirst + static_cast<uint64_t>(cut))});
    EXPECT_TRUE(at::equal(parts, whole)) << cut;
  }
}

TEST(RoundedWeights, KeepTheMeanOverElementsAndOverSteps) {
  // One number everywhere, 0.3 of the way between its neighbours 1 and 1 + 2^-7.
  constexpr double kShare = 0.3;
  const auto value = static_cast<float>(1 + kShare / 128);
  const auto share_above = [](const at::Tensor& stored) {
    return (stored.to(at::kDouble) - 1).mul(128).mean().item<double>();
  };
  // A share of n coins has a standard deviation of sqrt(0.3·0.7/n); five of them, and 2^-16 for 16 random bits.
  const auto bound = [&](double n) { return 5 * std::sqrt(kShare * (1 - kShare) / n) + std::ldexp(1.0, -16); };
  constexpr int64_t kElements = 1 << 16;
  EXPECT_NEAR(share_above(rounded(at::full({kElements}, value), 0, 1)), kShare, bound(kElements));
  constexpr int64_t kSteps = 1 << 10;
  at::Tensor sum = at::zeros({64}, at::dtype(at::kDouble));
  for (int64_t step = 1; step <= kSteps; ++step) sum += rounded(at::full({64}, value), 5, step).to(at::kDouble);
  EXPECT_NEAR(share_above(sum.div(kSteps)), kShare, bound(64.0 * kSteps));
  const double most = (sum.div(kSteps) - 1).mul(128).sub(kShare).abs().max().item<double>();
  EXPECT_LT(most, bound(kSteps)) << "an element that always goes the same way";
}

TEST(RoundedWeights, HaveBitsOfTheirOwn) {
  constexpr int64_t n = 1 << 16;
  const auto bit = [&](const at::Tensor& stored) { return stored.to(at::kDouble).sub(1).mul(256).sub(1); };  // ±1
  const at::Tensor half = at::full({n}, 1 + 1.0F / 256);
  const at::Tensor own = bit(rounded(half, 2, 9));
  const double five = 5 / std::sqrt(static_cast<double>(n));  // of a mean of n products of independent signs
  const auto correlation = [&](const at::Tensor& other) { return own.mul(other).mean().item<double>(); };
  EXPECT_NEAR(correlation(bit(rounded(half, 2, 10))), 0, five) << "the next step's";
  EXPECT_NEAR(correlation(bit(rounded(half, 3, 9))), 0, five) << "the next parameter's";
  EXPECT_NEAR(correlation(bit(rounded(half, 2, 9, 1))), 0, five) << "the next element's";
  at::Tensor first = at::empty({n}), second = at::empty({n});  // those of the same parameter's moments in that step
  const uint32_t moments = rounding_stream_of(Rounded::kMoments, 2, 9);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t random = rounding_bits(moments, static_cast<uint64_t>(i));
    first.mutable_data_ptr<float>()[i] = (random & 0x8000U) != 0 ? 1.0F : -1.0F;
    second.mutable_data_ptr<float>()[i] = (random >> 31) != 0 ? 1.0F : -1.0F;
  }
  EXPECT_NEAR(correlation(first), 0, five);
  EXPECT_NEAR(correlation(second), 0, five);
  EXPECT_NEAR(correlation(at::ones({n})), 0, five);
}

TEST(RoundedWeights, MoveBySmallerStepsThanTheirRounding) {
  // A hundredth of the neighbours' distance a step, a thousand times: to the nearest it would never move.
  constexpr int64_t kElements = 4096, kSteps = 1000;
  const double step_length = std::ldexp(0.01, -7);
  at::Tensor stored = at::ones({kElements}, at::dtype(at::kBFloat16));
  for (int64_t step = 1; step <= kSteps; ++step) stored = rounded(stored.to(at::kFloat).add(step_length), 1, step);
  const at::Tensor moved = stored.to(at::kDouble).sub(1);
  // The contract's variance of each step, u·(e − u); five standard deviations of the mean.
  const double spread = std::sqrt(kSteps * step_length * (std::ldexp(1.0, -7) - step_length));
  EXPECT_NEAR(moved.mean().item<double>(), kSteps * step_length, 5 * spread / std::sqrt(kElements));
  EXPECT_NEAR(moved.std().item<double>(), spread, 0.06 * spread);  // five of its own, 1/sqrt(2·4096)
}

TEST(RoundedWeights, StayNumbersIfTheyAreAndNoneIfTheyAreNone) {
  const float infinite = std::numeric_limits<float>::infinity();
  const at::Tensor odd = at::tensor({0.0F, -0.0F, infinite, -infinite, std::nanf(""), 1e-42F, 2.0F, -0.75F});
  const at::Tensor found = rounded(odd, 0, 1).to(at::kFloat);
  EXPECT_TRUE(found[4].isnan().item<bool>());
  for (const int64_t i : {0, 1, 2, 3, 6, 7}) EXPECT_EQ(found[i].item<float>(), odd[i].item<float>()) << i;
  EXPECT_LT(found[5].item<float>(), 1e-40F);
  EXPECT_NO_THROW(rounded(at::zeros({0}), 0, 1));
}

TEST(RoundedWeights, OfTensorsThatDoNotFitAreRefused) {
  const at::Tensor values = there(at::zeros({10})), stored = there(at::zeros({10}, at::dtype(at::kBFloat16)));
  EXPECT_THROW(round_weights(values.view({2, 5}), 0, 1, 0, stored), std::invalid_argument);
  EXPECT_THROW(round_weights(values, 0, 1, 0, stored.narrow(0, 0, 9)), std::invalid_argument);
  EXPECT_THROW(round_weights(values, 0, 1, 0, values), std::invalid_argument);
  EXPECT_THROW(round_weights(stored, 0, 1, 0, stored), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::kernels
