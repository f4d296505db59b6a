#include "kernels/norm_parts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/backend.h"

namespace ghostshard::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  const char* name;
  double value, value_error, mass, sum_error;
  double expected;
};

class NormUpperBound : public testing::TestWithParam<Case> {};

TEST_P(NormUpperBound, FollowsTheRuleAndIsNeverBelowIt) {
  const Case& c = GetParam();
  NormParts parts = NormParts::zeros(2);
  parts.value[1] = c.value;
  parts.value_error[1] = c.value_error;
  parts.mass[1] = c.mass;
  parts.sum_error[1] = c.sum_error;
  const at::Tensor bound = norm_upper_bound_sq(parts);
  EXPECT_EQ(bound[0].item<double>(), 0.0) << "the other unit is not touched";
  EXPECT_GE(bound[1].item<double>(), c.expected);
  EXPECT_LE(bound[1].item<double>(), c.expected * (1 + 0x1p-48)) << "rounded up by more than its roundings";
}

INSTANTIATE_TEST_SUITE_P(, NormUpperBound,
                         testing::Values(Case{"Exact", 4, 0, 7, 0, 4},                            //
                                         Case{"ValueError", 3, 1, 0, 0, 4},                       //
                                         Case{"SumError", 4, 0, 10, 0.1, 9},                      //
                                         Case{"Both", 3, 1, 10, 0.1, 9},                          //
                                         Case{"NegativeValueCountsAsZero", -1, 4, 0, 0, 4},       //
                                         Case{"InfiniteValue", kInf, 0, 0, 0, kInf},              //
                                         Case{"NanValue", kNan, 0, 0, 0, kInf},                   //
                                         Case{"MinusInfinity", -kInf, 0, 0, 0, kInf},             //
                                         Case{"NanError", 1, kNan, 0, 0, kInf},                   //
                                         Case{"NanMass", 1, 0, kNan, 0, kInf},                    //
                                         Case{"InfiniteMassTimesZero", 1, 0, kInf, 0, kInf},      //
                                         Case{"InfiniteSumErrorTimesZero", 1, 0, 0, kInf, kInf},  //
                                         Case{"Overflow", 1e308, 1e308, 0, 0, kInf}),
                         [](const auto& test) { return test.param.name; });

TEST(SumOfNormBounds, AddsTheParametersBoundsInTheirOrder) {
  constexpr int64_t kParameters = 5, kUnits = 3;
  const NormParts all = backend::zero_parts(kParameters * kUnits);
  at::Tensor expected = at::zeros({kUnits}, all.value.options());
  for (int64_t i = 0; i < kParameters; ++i) {
    const NormParts its = all.of(i, kUnits);
    if (i != 2) {  // one that was not used
      its.value.add_(at::arange(kUnits, its.value.options()) + std::pow(10.0, 4 - i)).div_(3);
      its.value_error.fill_(1e-3);
      its.mass.fill_(7);
      its.sum_error.fill_(1e-4);
    }
    expected.add_(norm_upper_bound_sq(its));
  }
  EXPECT_TRUE(at::equal(sum_of_norm_bounds(all, kUnits), expected));
  EXPECT_TRUE(at::equal(all.of(3, kUnits).value, all.value.narrow(0, 9, 3)));
  EXPECT_THROW(sum_of_norm_bounds(all, 4), std::invalid_argument);
  all.of(1, kUnits).value[2].fill_(kNan);
  EXPECT_EQ(sum_of_norm_bounds(all, kUnits)[2].item<double>(), kInf);
}

TEST(Gamma, IsExactForPowersOfTwoAndInfiniteWhereNothingIsKnown) {
  EXPECT_EQ(gamma_float32(0), 0.0);
  EXPECT_EQ(gamma_float32(int64_t{1} << 23), 1.0);
  EXPECT_EQ(gamma_float32(int64_t{1} << 24), kInf);
  EXPECT_EQ(gamma_float64(int64_t{1} << 52), 1.0);
  EXPECT_EQ(gamma_float64(int64_t{1} << 53), kInf);
}

}  // namespace
}  // namespace ghostshard::kernels
