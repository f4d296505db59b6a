// Rows that begin some elements after the end of the one before: operations on the CPU give what they give of
// contiguous rows. (Not to the bit: a library's product may take them another way.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "kernels/fingerprint.h"
#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"
#include "kernels/tied_pair.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

// One tile of a Gram matrix, several, one row, none.
const Segments kSegments = oracle::segments_of({100, 300, 1, 0, 7});

// What lies between the rows would spoil every sum.
at::Tensor apart(const at::Tensor& x, int64_t gap) {
  at::Tensor wide = at::full({x.size(0), x.size(1) + gap}, std::numeric_limits<double>::quiet_NaN(), x.options());
  return wide.narrow(1, 0, x.size(1)).copy_(x);
}

void expect_close(const at::Tensor& x, const at::Tensor& expected) {
  EXPECT_TRUE(at::allclose(x, expected, 1e-5, 1e-5)) << (x - expected).abs().max();
}

void expect_same(const NormParts& parts, const NormParts& expected) {
  expect_close(parts.value, expected.value);
  expect_close(parts.value_error, expected.value_error);
  expect_close(parts.mass, expected.mass);
  expect_close(parts.sum_error, expected.sum_error);
}

NormParts zeros() { return NormParts::zeros(kSegments.units()); }

class RowsApart : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor a = oracle::normal({kSegments.rows(), 12}, 1, GetParam());
  at::Tensor g = oracle::normal({kSegments.rows(), 37}, 2, GetParam());
  at::Tensor a_apart = apart(a, 4);
  at::Tensor g_apart = apart(g, 11);
};
INSTANTIATE_TEST_SUITE_P(, RowsApart, testing::Values(at::kFloat, at::kDouble));

TEST_P(RowsApart, HaveTheSameNorms) {
  for (const auto norm : {&gram_norm, &passing_norm}) {
    NormParts expected = zeros(), parts = zeros();
    norm(a, g, kSegments, expected);
    norm(a_apart, g_apart, kSegments, parts);
    expect_same(parts, expected);
  }
}

TEST_P(RowsApart, HaveTheSameGradients) {
  at::Tensor expected = at::empty({kSegments.units(), 37, 12}, GetParam()), held = at::empty_like(expected);
  NormParts of_expected = zeros(), parts = zeros();
  per_unit_gradient(a, g, kSegments, expected, /*accumulate=*/false, of_expected);
  per_unit_gradient(a_apart, g_apart, kSegments, held, /*accumulate=*/false, parts);
  expect_close(held, expected);
  expect_same(parts, of_expected);
}

TEST_P(RowsApart, HaveTheSameSums) {
  const at::Tensor factors = at::tensor({0.5, 0.25, 1.0, 1.0, 0.0}, at::kFloat);
  NormParts parts = zeros();
  gram_norm(a, g, kSegments, parts);
  for (const bool exchanged : {false, true}) {  // the narrower is scaled
    const auto& [left, right] = exchanged ? std::tie(g, a) : std::tie(a, g);
    const auto& [left_apart, right_apart] = exchanged ? std::tie(g_apart, a_apart) : std::tie(a_apart, g_apart);
    at::Tensor expected = at::zeros({right.size(1), left.size(1)}, GetParam()), sum = at::zeros_like(expected);
    scaled_sum_rows(left, right, kSegments, factors, expected, &parts);
    scaled_sum_rows(left_apart, right_apart, kSegments, factors, sum, &parts);
    expect_close(sum, expected);
    EXPECT_GT(expected.abs().max().item<double>(), 1);
  }
}

TEST_P(RowsApart, HaveTheSameCrossTerms) {
  const Segments lookups = oracle::segments_of({3, 140, 1, 2, 0});
  const at::Tensor ids = at::arange(lookups.rows(), at::kLong).remainder(37);
  const at::Tensor e = oracle::normal({lookups.rows(), 12}, 3, GetParam());
  NormParts expected = zeros(), parts = zeros();
  gram_norm(a, g, kSegments, expected);
  gram_norm(a, g_apart, kSegments, parts);
  tied_pair_cross_term(ids, e, lookups, a, g, kSegments, expected);
  tied_pair_cross_term(ids, e, lookups, a, g_apart, kSegments, parts);
  expect_same(parts, expected);
}

TEST_P(RowsApart, HaveFingerprintsThatRepeatAndChange) {
  const uint64_t first = fingerprint(a, g_apart, kSegments);
  EXPECT_EQ(fingerprint(a, apart(g, 11), kSegments), first);
  for (const int64_t row : {int64_t{0}, kSegments.rows() - 1}) {
    for (const int64_t column : {int64_t{0}, int64_t{36}}) {
      at::Tensor changed = apart(g, 11);
      changed[row][column].add_(1);
      EXPECT_NE(fingerprint(a, changed, kSegments), first) << row << ' ' << column;
    }
  }
}

// Rows that overlap, and columns that lie apart, are others' mistakes.
TEST_P(RowsApart, RefuseOtherLayouts) {
  NormParts parts = zeros();
  const at::Tensor overlapping = a.as_strided({kSegments.rows(), 12}, {3, 1});
  const at::Tensor columns_apart = oracle::normal({kSegments.rows(), 24}, 4, GetParam()).slice(1, 0, 24, 2);
  const at::Tensor transposed = oracle::normal({12, kSegments.rows()}, 5, GetParam()).t();
  for (const at::Tensor& x : {overlapping, columns_apart, transposed}) {
    EXPECT_THAT([&] { gram_norm(x, g, kSegments, parts); },
                testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("must be contiguous")));
  }
}

}  // namespace
}  // namespace ghostshard::kernels
