#include "kernels/affine_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using oracle::at_unit;

struct AffineCase {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t columns;
  bool accumulate = false;
  at::ScalarType type = at::kFloat;
};

class Affine : public testing::TestWithParam<AffineCase> {
 protected:
  // out is the float64 sum rounded once; the oracle's own float64 rounding may tip that rounding.
  void expect_sums(const at::Tensor& products) const {
    for (int64_t u = 0; u < segments.units(); ++u) {
      const at::Tensor rows = oracle::unit_rows(products, segments, u);
      const at::Tensor start = c.accumulate ? before[u].to(at::kDouble) : at::zeros({c.columns}, at::kDouble);
      const at::Tensor expected = start + rows.sum(0);
      const double unit_roundoff = c.type == at::kFloat ? 0x1p-24 : 0x1p-53;
      const at::Tensor allowed = 1.01 * unit_roundoff * expected.abs() +
                                 gamma_float64(segments.length(u) + 3) * 2 * (start.abs() + rows.abs().sum(0));
      EXPECT_LE(((out[u].cpu() - expected).abs() - allowed).max().item<double>(), 0) << "unit " << u;
      const double squared = oracle::squared_norm(out[u]);
      EXPECT_NEAR(at_unit(parts.value, u), squared, at_unit(parts.value_error, u) + 1e-14 * squared);
      EXPECT_EQ(at_unit(parts.mass, u), 0);
    }
  }

  const AffineCase& c = GetParam();
  const Segments segments = oracle::segments_of(c.lengths);
  const at::Tensor g = oracle::normal({segments.rows(), c.columns}, 21, c.type);
  const at::Tensor x_hat = oracle::normal({segments.rows(), c.columns}, 22, c.type);
  const at::Tensor before = oracle::normal({segments.units(), c.columns}, 23, c.type);
  at::Tensor out = backend::there(before.clone());
  NormParts parts = backend::zero_parts(segments.units());
};

TEST_P(Affine, RowSumEqualsTheOracle) {
  per_unit_row_sum(backend::there(g), segments, out, c.accumulate, parts);
  expect_sums(g.to(at::kDouble));
}

TEST_P(Affine, ProductSumEqualsTheOracle) {
  per_unit_product_sum(backend::there(g), backend::there(x_hat), segments, out, c.accumulate, parts);
  expect_sums(g.to(at::kDouble) * x_hat.to(at::kDouble));
}

INSTANTIATE_TEST_SUITE_P(, Affine,
                         testing::Values(AffineCase{"Ragged", {3, 17, 1}, 37},              //
                                         AffineCase{"Accumulate", {3, 17, 1}, 37, true},    //
                                         AffineCase{"EmptyUnits", {0, 5, 0}, 8},            //
                                         AffineCase{"AccumulateNothing", {0, 5}, 8, true},  //
                                         AffineCase{"NoUnits", {}, 8},                      //
                                         AffineCase{"Float64", {4, 9}, 19, true, at::kDouble}),
                         [](const auto& test) { return test.param.name; });

TEST(AffineNorm, RefusesShapesThatDoNotFit) {
  const Segments segments = oracle::segments_of({2, 3});
  const at::Tensor g = at::zeros({5, 4});
  NormParts parts = NormParts::zeros(2);
  EXPECT_THROW(per_unit_row_sum(g, segments, at::zeros({2, 3}), false, parts), std::invalid_argument);
  EXPECT_THROW(per_unit_row_sum(g.slice(0, 1), segments, at::zeros({2, 4}), false, parts), std::invalid_argument);
  EXPECT_THROW(per_unit_product_sum(g, at::zeros({5, 3}), segments, at::zeros({2, 4}), false, parts),
               std::invalid_argument);
  EXPECT_THROW(per_unit_product_sum(g, g, segments, at::zeros({2, 4}, at::kDouble), false, parts),
               std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::kernels
