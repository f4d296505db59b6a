// Output gradients that come by tiles of outputs: norms and sums beside those of whole rows, and beside float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/linear_norm.h"
#include "kernels/norm_parts/bound.h"
#include "kernels/scaled_sum.h"
#include "tests/kernels/linear_case.h"

namespace ghostshard::kernels {
namespace {

std::vector<at::Tensor> cut(const at::Tensor& g, int64_t width) {
  std::vector<at::Tensor> tiles;
  for (const at::Tensor& tile : g.split(width, 1)) tiles.push_back(tile.contiguous());
  return tiles;
}

// Tiles within one chunk of the Gram kernel's columns, of many chunks, and one that has all.
class GradientTiles : public testing::TestWithParam<std::tuple<LinearCase, int64_t>> {
 protected:
  const LinearCase& c = std::get<0>(GetParam());
  const Segments segments = oracle::segments_of(c.lengths);
  const oracle::Rows rows = oracle::rows_like(c.tokens, segments.rows(), c.inputs, c.outputs);
  std::vector<at::Tensor> tiles = cut(rows.g, std::get<1>(GetParam()));

  NormParts measured() const {
    TiledGramNorm norm(segments);
    for (const at::Tensor& tile : tiles) norm.take(tile, segments);
    NormParts parts = NormParts::zeros(segments.units(), at::kCPU);
    norm.add_to(rows.a, tiles, segments, parts);
    return parts;
  }
};

INSTANTIATE_TEST_SUITE_P(
    , GradientTiles,
    testing::Combine(testing::Values(LinearCase{"Ragged", {3, 17, 0, 1, 128}, 16, 2500},                            //
                                     LinearCase{"NoUnits", {}, 4, 70},                                              //
                                     LinearCase{"SharedDirection", {40, 64}, 300, 2500, Tokens::kSharedDirection},  //
                                     LinearCase{"CancelTo1e4", {2, 6, 40}, 64, 2500, Tokens::kCancel1e4},           //
                                     LinearCase{"CancelExactly", {2, 40}, 64, 2500, Tokens::kCancelExactly},        //
                                     LinearCase{"GramEntriesUnderflow", {4, 7}, 32, 2500, Tokens::kTiny},           //
                                     LinearCase{"ZeroGradients", {4, 7}, 32, 2500, Tokens::kZeroGradient}),
                     testing::Values(64, 1700, 2500)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) + "By" + std::to_string(std::get<1>(test.param));
    });

TEST_P(GradientTiles, HaveANormThatErrsByNoMoreThanItsBound) {
  const NormParts parts = measured();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double exact = oracle::squared_norm(oracle::linear_gradient(rows.a, rows.g, segments, u));
    const double magnitude = oracle::squared_norm(oracle::linear_magnitude(rows.a, rows.g, segments, u));
    const double oracle_error =
        4 * gamma_float64(segments.length(u) + 2) * std::sqrt(exact * magnitude) + 1e-12 * exact;
    EXPECT_NEAR(at_unit(parts.value, u), exact, at_unit(parts.value_error, u) + oracle_error) << "unit " << u;
    // Either within 1e-3, or in float64 with a value that cancels below the resolution of float64.
    const int64_t terms = c.inputs + c.outputs + segments.length(u) * segments.length(u) + 64;
    const double in_float64 = 4 * gamma_float64(terms) * at_unit(parts.mass, u) * at_unit(parts.mass, u);
    EXPECT_LE(at_unit(parts.value_error, u), std::max(1e-3 * at_unit(parts.value, u), in_float64)) << "unit " << u;
  }
}

TEST_P(GradientTiles, HaveThePartsOfWholeRows) {
  const NormParts parts = measured();
  NormParts whole = NormParts::zeros(segments.units(), at::kCPU);
  gram_norm(rows.a, rows.g, segments, whole);
  EXPECT_TRUE(at::allclose(parts.mass, whole.mass, 1e-10, 0));
  EXPECT_TRUE(at::equal(parts.sum_error, whole.sum_error));
  const at::Tensor apart = (parts.value - whole.value).abs();
  EXPECT_TRUE(apart.le(parts.value_error + whole.value_error).all().item<bool>());
}

TEST_P(GradientTiles, HaveTheSumOfWholeRowsAndAreFreedByIt) {
  const int64_t units = segments.units();
  at::Tensor factors = at::linspace(0, 1, units, at::kFloat);  // the first unit's is 0
  at::Tensor found = oracle::normal({c.outputs, c.inputs}, 3), expected = found.clone();
  const NormParts parts = measured();
  scaled_sum_tiles(rows.a, tiles, segments, factors, found, &parts);
  at::Tensor magnitude = found.abs().to(at::kDouble), exact = expected.to(at::kDouble);
  for (int64_t u = 0; u < units; ++u) {
    const double factor = at_unit(factors, u);
    if (factor == 0) continue;
    exact += factor * oracle::linear_gradient(rows.a, rows.g, segments, u);
    magnitude += factor * oracle::linear_magnitude(rows.a, rows.g, segments, u);
  }
  // c·a rounds once, a product's chain has at most its rows, and each of the units' sums is added once.
  expect_within(found, exact, gamma_float32(segments.rows() + units + 2) * (magnitude + expected.abs()) + 0x1p-126);
  for (const at::Tensor& tile : tiles) EXPECT_FALSE(tile.defined());
}

TEST(GradientTile, OfAUnitWithFactorZeroIsNotRead) {
  const Segments segments(std::vector<int64_t>{0, 2, 4});
  at::Tensor g = at::ones({4, 6});
  g.narrow(0, 0, 2).fill_(std::numeric_limits<float>::quiet_NaN());
  std::vector<at::Tensor> tiles = cut(g, 4);
  at::Tensor out = at::zeros({6, 3});
  scaled_sum_tiles(at::ones({4, 3}), tiles, segments, at::tensor({0.0F, 0.5F}), out);
  EXPECT_TRUE(out.eq(1).all().item<bool>()) << out;
}

TEST(GradientTile, In16BitsCountsAsFloat32) {
  const Segments segments(std::vector<int64_t>{0, 3, 9});
  const at::Tensor a = oracle::normal({9, 5}, 1), g = oracle::normal({9, 70}, 2).to(at::kBFloat16);
  std::vector<at::Tensor> tiles = cut(g, 32);
  at::Tensor found = at::zeros({70, 5}), expected = at::zeros({70, 5});
  scaled_sum_tiles(a, tiles, segments, at::tensor({1.0F, 0.5F}), found);
  scaled_sum_rows(a, g.to(at::kFloat), segments, at::tensor({1.0F, 0.5F}), expected);
  EXPECT_TRUE(at::allclose(found, expected, 1e-5, 1e-6));
}

TEST(GradientTile, IsRefusedIfItDoesNotFit) {
  const Segments segments(std::vector<int64_t>{0, 3, 9}), longer(std::vector<int64_t>{0, 129});
  EXPECT_TRUE(TiledGramNorm::can_take(at::ones({9, 5}), segments));
  EXPECT_FALSE(TiledGramNorm::can_take(at::ones({129, 5}), longer)) << "its Gram matrix is more than a tile";
  TiledGramNorm norm(segments);
  EXPECT_THROW(norm.take(at::ones({8, 5}), segments), std::invalid_argument);
  EXPECT_THROW(norm.take(at::ones({9, 5}, at::kDouble), segments), std::invalid_argument);
  std::vector<at::Tensor> tiles{at::ones({9, 4})};
  at::Tensor out = at::zeros({5, 3});
  EXPECT_THROW(scaled_sum_tiles(at::ones({9, 3}), tiles, segments, at::ones({2}), out), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::kernels
