#include "kernels/scaled_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/norm_parts.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;
using oracle::at_unit;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct SumCase {
  const char* name;
  std::vector<int64_t> lengths;
  std::vector<float> factors;
  int64_t inputs, outputs;
  at::ScalarType type = at::kFloat;
};

std::string case_name(const testing::TestParamInfo<SumCase>& test) { return test.param.name; }

const auto kCases =
    testing::Values(SumCase{"InputsNarrower", {3, 9, 4}, {1, 0.5f, 0.25f}, 5, 12},                      //
                    SumCase{"OutputsNarrower", {3, 9, 4}, {1, 0.5f, 0.25f}, 12, 5},                     //
                    SumCase{"EmptyUnits", {0, 9, 0}, {1, 0.3f, 0}, 6, 6},                               //
                    SumCase{"NoUnits", {}, {}, 4, 5},                                                   //
                    SumCase{"AllZero", {2, 3}, {0, 0}, 4, 5},                                           //
                    SumCase{"MinusZeroIsZero", {2, 3, 1}, {-0.0f, 0.7f, -0.0f}, 4, 5},                  //
                    SumCase{"ZerosBetweenShortRuns", {1, 2, 1, 1, 3}, {0.1f, 0, 0.3f, 0, 0.9f}, 7, 5},  //
                    SumCase{"ZerosBetweenLongRuns", {150, 2, 130, 90}, {0.1f, 0, 0.3f, 0.2f}, 5, 7},    //
                    SumCase{"FiveUnits", {2, 2, 2, 2, 2}, {0.1f, 0.2f, 0.3f, 0.4f, 0.5f}, 50, 60},      //
                    SumCase{"Float64", {3, 9, 4}, {1, 0, 0.25f}, 5, 12, at::kDouble});

class ScaledSum : public testing::TestWithParam<SumCase> {
 protected:
  const SumCase& c = GetParam();
  const Segments segments = oracle::segments_of(c.lengths);
  const at::Tensor factors = there(at::tensor(c.factors, at::kFloat));
  const at::Tensor before = oracle::normal({c.outputs, c.inputs}, 3, c.type);

  double gamma(int64_t terms) const { return c.type == at::kFloat ? gamma_float32(terms) : gamma_float64(terms); }
  static void expect_within(const at::Tensor& out, const at::Tensor& expected, const at::Tensor& allowed) {
    EXPECT_LE(((out.cpu().to(at::kDouble) - expected).abs() - allowed).max().item<double>(), 1e-15) << out;
  }
};

class ScaledSumRows : public ScaledSum {};

TEST_P(ScaledSumRows, EqualsTheOracleThoughUnitsOfFactorZeroAreNotFinite) {
  oracle::Rows rows = oracle::rows_like(oracle::Tokens::kIndependent, segments.rows(), c.inputs, c.outputs, c.type);
  at::Tensor expected = before.to(at::kDouble).clone(), magnitude = expected.abs();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double factor = c.factors[static_cast<size_t>(u)];
    if (factor != 0) {
      expected += factor * oracle::linear_gradient(rows.a, rows.g, segments, u);
      magnitude += factor * oracle::linear_magnitude(rows.a, rows.g, segments, u);
      continue;
    }
    rows.a.slice(0, segments.begin(u), segments.end(u)).fill_(u % 2 == 0 ? kNan : kInf);
    rows.g.slice(0, segments.begin(u), segments.end(u)).fill_(u % 2 == 0 ? kInf : kNan);
  }
  at::Tensor out = there(before.clone());
  scaled_sum_rows(there(rows.a), there(rows.g), segments, factors, out);
  expect_within(out, expected, gamma(segments.rows() + 2) * magnitude);
}

TEST_P(ScaledSumRows, LeavesItsInputsAlone) {
  const oracle::Rows rows =
      oracle::rows_like(oracle::Tokens::kIndependent, segments.rows(), c.inputs, c.outputs, c.type);
  const at::Tensor a_there = there(rows.a), g_there = there(rows.g), a = rows.a.clone(), g = rows.g.clone();
  scaled_sum_rows(a_there, g_there, segments, factors, there(before.clone()));
  EXPECT_TRUE(oracle::same_bits(a_there, a) && oracle::same_bits(g_there, g));
}

TEST_P(ScaledSumRows, Repeats) {
  const oracle::Rows rows =
      oracle::rows_like(oracle::Tokens::kIndependent, segments.rows(), c.inputs, c.outputs, c.type);
  at::Tensor once = there(before.clone()), again = there(before.clone());
  scaled_sum_rows(there(rows.a), there(rows.g), segments, factors, once);
  scaled_sum_rows(there(rows.a), there(rows.g), segments, factors, again);
  EXPECT_TRUE(oracle::same_bits(once, again));
}

INSTANTIATE_TEST_SUITE_P(, ScaledSumRows, kCases, case_name);

class ScaledSumHeld : public ScaledSum {};

TEST_P(ScaledSumHeld, EqualsTheOracleThoughUnitsOfFactorZeroAreNotFinite) {
  at::Tensor held = oracle::normal({segments.units(), c.outputs, c.inputs}, 4, c.type);
  at::Tensor expected = before.to(at::kDouble).clone(), magnitude = expected.abs();
  int64_t contributing = 0;
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double factor = c.factors[static_cast<size_t>(u)];
    if (factor != 0) {
      expected += factor * held[u].to(at::kDouble);
      magnitude += factor * held[u].to(at::kDouble).abs();
      ++contributing;
      continue;
    }
    held[u].fill_(u % 2 == 0 ? kNan : kInf);
  }
  at::Tensor out = there(before.clone());
  scaled_sum_held(there(held), factors, out);
  expect_within(out, expected, gamma(contributing + 1) * magnitude);
}

INSTANTIATE_TEST_SUITE_P(, ScaledSumHeld, kCases, case_name);

TEST(ScaledSumHeldBlocks, ManyElementsAndAnyShape) {
  const at::Tensor held = oracle::normal({6, 3, 2111}, 4), factors = oracle::normal({6}, 5);
  at::Tensor out = there(at::zeros({3, 2111}));
  scaled_sum_held(there(held), there(factors), out);
  const at::Tensor expected = at::einsum("u,uij->ij", {factors.to(at::kDouble), held.to(at::kDouble)});
  const at::Tensor magnitude = at::einsum("u,uij->ij", {factors.to(at::kDouble).abs(), held.to(at::kDouble).abs()});
  EXPECT_LE(((out.cpu() - expected).abs() - gamma_float32(7) * magnitude).max().item<double>(), 0);
}

TEST(ScaledSum, NonFiniteFactorsAreNotHidden) {
  at::Tensor out = there(at::zeros({4}));
  scaled_sum_held(there(at::ones({2, 4})), there(at::tensor({kNan, 1.0f})), out);
  EXPECT_TRUE(out.isnan().all().item<bool>());
}

TEST(ScaledSum, RefusesShapesThatDoNotFit) {
  const Segments segments = oracle::segments_of({2, 3});
  const auto zeros = [](at::IntArrayRef shape) { return there(at::zeros(shape)); };
  const at::Tensor a = zeros({5, 4}), g = zeros({5, 3}), factors = zeros({2}), held = zeros({2, 3, 4});
  EXPECT_THROW(scaled_sum_rows(a, g, segments, factors, zeros({4, 3})), std::invalid_argument);
  EXPECT_THROW(scaled_sum_rows(a, g, segments, zeros({3}), zeros({3, 4})), std::invalid_argument);
  EXPECT_THROW(scaled_sum_rows(a, g, segments, factors.to(at::kDouble), zeros({3, 4})), std::invalid_argument);
  EXPECT_THROW(scaled_sum_rows(g, g.slice(0, 1), segments, factors, zeros({3, 3})), std::invalid_argument);
  EXPECT_THROW(scaled_sum_held(held, factors, zeros({12})), std::invalid_argument);
  EXPECT_THROW(scaled_sum_held(held, zeros({1}), zeros({3, 4})), std::invalid_argument);
  EXPECT_THROW(scaled_sum_held(held.transpose(1, 2), factors, zeros({4, 3})), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::kernels
