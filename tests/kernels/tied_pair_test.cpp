#include "kernels/tied_pair.h"

#include <cmath>

#include "kernels/embedding_norm.h"
#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"
#include "tests/kernels/linear_case.h"

namespace ghostshard::kernels {
namespace {

struct TiedPairCase {
  const char* name;
  std::vector<int64_t> lookups, tokens;
  int64_t table_rows, columns;
  double cancel = 0;  // embedding = −(1 + cancel)·head if not 0; exactly −head if negative
  at::ScalarType type = at::kFloat;
};

class TiedPair : public testing::TestWithParam<TiedPairCase> {
 protected:
  void SetUp() override {
    at::manual_seed(5);
    ids = at::randint(c.table_rows, {s_e.rows()}, at::kLong);
    if (c.cancel != 0) {
      // Each row of logit gradients has one token, and the embedding's row for that token is the opposite.
      b.zero_();
      for (int64_t t = 0; t < s_h.rows(); ++t) {
        b[t][ids[t].item<int64_t>()] = 0.5;
        e[t].copy_(h[t]).mul_(-0.5 * (1 + std::max(c.cancel, 0.0)));
      }
    }
  }

  at::Tensor gradient(int64_t unit) const {
    return oracle::lookup_gradient(ids, e, s_e, unit, c.table_rows) + oracle::linear_gradient(h, b, s_h, unit);
  }

  NormParts measured() const {
    NormParts parts = zero_parts(s_e.units());
    embedding_norm(there(ids), there(e), s_e, c.table_rows, parts);
    gram_norm(there(h), there(b), s_h, parts);
    tied_pair_cross_term(there(ids), there(e), s_e, there(h), there(b), s_h, parts);
    return parts;
  }

  const TiedPairCase& c = GetParam();
  const Segments s_e = oracle::segments_of(c.lookups), s_h = oracle::segments_of(c.tokens);
  at::Tensor ids;
  at::Tensor e = oracle::normal({s_e.rows(), c.columns}, 6, c.type);
  at::Tensor h = oracle::normal({s_h.rows(), c.columns}, 7, c.type);
  at::Tensor b = oracle::normal({s_h.rows(), c.table_rows}, 8, c.type);
};

TEST_P(TiedPair, EqualsTheNormOfTheSumOfBothGradients) {
  const NormParts parts = measured();
  for (int64_t u = 0; u < s_e.units(); ++u) {
    const double exact = oracle::squared_norm(gradient(u));
    const double mass = at_unit(parts.mass, u);
    EXPECT_NEAR(at_unit(parts.value, u), exact,
                at_unit(parts.value_error, u) + 1e-12 * exact + 0x1p-50 * mass * std::sqrt(exact) + 1e-30 * mass * mass)
        << "unit " << u;
    const double apart = oracle::squared_norm(oracle::lookup_gradient(ids, e, s_e, u, c.table_rows)) +
                         oracle::squared_norm(oracle::linear_gradient(h, b, s_h, u));
    EXPECT_LE(at_unit(parts.value_error, u),
              std::max({1e-3 * exact, gamma_float64(4 * (c.columns + c.table_rows + 4096)) * mass * mass,
                        (0.5 + 1e-3) * apart - exact}));
  }
}

TEST_P(TiedPair, UpperBoundCoversTheContributionAsComputed) {
  const at::Tensor bound = norm_upper_bound_sq(measured());
  for (int64_t u = 0; u < s_e.units(); ++u) {
    at::Tensor contribution = there(at::zeros({c.table_rows, c.columns}, c.type));
    const at::Tensor factors = there(oracle::only(u, s_e.units()));
    scaled_sum_rows(there(h), there(b), s_h, factors, contribution);
    embedding_scaled_sum(there(ids), there(e), s_e, factors, contribution);
    EXPECT_GE(at_unit(bound, u), oracle::squared_norm(contribution)) << "unit " << u;
  }
}

// Both uses pass through the common sum.
TEST_P(TiedPair, UpperBoundIsAtLeastHalfOfBothNorms) {
  const at::Tensor bound = norm_upper_bound_sq(measured());
  for (int64_t u = 0; u < s_e.units(); ++u) {
    const double embedding = oracle::squared_norm(oracle::lookup_gradient(ids, e, s_e, u, c.table_rows));
    const double head = oracle::squared_norm(oracle::linear_gradient(h, b, s_h, u));
    const double half = (std::sqrt(embedding) + std::sqrt(head)) / 2;
    EXPECT_GE(at_unit(bound, u), half * half * (1 - 1e-12)) << "unit " << u;
  }
}

INSTANTIATE_TEST_SUITE_P(, TiedPair,
                         testing::Values(TiedPairCase{"SameRows", {5, 7}, {5, 7}, 13, 9},                     //
                                         TiedPairCase{"RaggedAndEmpty", {0, 6, 1, 3}, {4, 0, 2, 3}, 5, 300},  //
                                         TiedPairCase{"RepeatedIds", {40}, {40}, 3, 16},                      //
                                         TiedPairCase{"SeveralTiles", {150, 9}, {600, 9}, 31, 8},             //
                                         TiedPairCase{"CancelTo1e4", {6, 30}, {6, 30}, 300, 64, 1e-4},        //
                                         TiedPairCase{"CancelExactly", {6, 30}, {6, 30}, 300, 64, -1},        //
                                         TiedPairCase{"Float64", {5, 7}, {5, 7}, 13, 9, 0, at::kDouble}),
                         [](const auto& test) { return test.param.name; });

TEST(TiedPairCrossTerm, RefusesShapesThatDoNotFit) {
  const Segments segments = oracle::segments_of({2, 1}), others = oracle::segments_of({3});
  const at::Tensor e = there(at::zeros({3, 4})), h = there(at::zeros({3, 4})), b = there(at::zeros({3, 6}));
  NormParts parts = zero_parts(2);
  const auto with_ids = [](std::vector<int64_t> ids) { return there(at::tensor(ids, at::kLong)); };
  for (const auto& ids : {with_ids({0, 1, 6}), with_ids({0, -1, 5})}) {
    if (backend::device().is_cpu()) {
      EXPECT_THROW(tied_pair_cross_term(ids, e, segments, h, b, segments, parts), std::invalid_argument);
    }
  }
  EXPECT_THROW(tied_pair_cross_term(with_ids({0, 1, 5}), e, segments, h, b, others, parts), std::invalid_argument);
  EXPECT_THROW(tied_pair_cross_term(with_ids({0, 1, 5}), e, segments, there(at::zeros({3, 5})), b, segments, parts),
               std::invalid_argument);
  EXPECT_NO_THROW(tied_pair_cross_term(with_ids({0, 1, 5}), e, segments, h, b, segments, parts));
}

// A lookup and a head that share a table are summed into one buffer: a product is rounded as often as there are rows of
// both.
TEST(TiedPairSumError, CoversTheRowsOfBothUses) {
  const Segments tokens = oracle::segments_of({3, 0, 200}), lookups = oracle::segments_of({40, 7, 1});
  NormParts parts = zero_parts(3);
  parts.sum_error.narrow(0, 1, 1).fill_(0.5);
  raise_tied_pair_sum_error(at::kFloat, tokens, lookups, parts);
  EXPECT_GE(at_unit(parts.sum_error, 0), gamma_float32(3 + 40));
  EXPECT_EQ(at_unit(parts.sum_error, 1), 0.5) << "it is only ever raised";
  EXPECT_GE(at_unit(parts.sum_error, 2), gamma_float32(128 + 1));
  EXPECT_LE(at_unit(parts.sum_error, 2), gamma_float32(200 + 1 + 5));
}

}  // namespace
}  // namespace ghostshard::kernels
