#include "kernels/embedding_norm.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;
using backend::zero_parts;
using oracle::at_unit;

enum class Ids { kRandom, kDistinct, kAllTheSame, kPairsThatCancel };

struct LookupCase {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t table_rows, columns;
  Ids ids = Ids::kRandom;
  at::ScalarType type = at::kFloat;
};

class Lookup : public testing::TestWithParam<LookupCase> {
 protected:
  void SetUp() override {
    at::manual_seed(11);
    ids = at::randint(c.table_rows, {segments.rows()}, at::kLong);
    for (int64_t s = 0; s < segments.rows(); ++s) {
      if (c.ids == Ids::kDistinct) {
        ids[s] = s;
      } else if (c.ids == Ids::kAllTheSame) {
        ids[s] = c.table_rows - 1;
      } else if (c.ids == Ids::kPairsThatCancel && s % 2 == 1) {
        ids[s] = ids[s - 1];
        e[s].copy_(e[s - 1]).mul_(-1.0 - 1e-4);
      }
    }
  }
  at::Tensor gradient(int64_t unit, const at::Tensor& rows) const {
    return oracle::lookup_gradient(ids, rows, segments, unit, c.table_rows);
  }

  const LookupCase& c = GetParam();
  const Segments segments = oracle::segments_of(c.lengths);
  at::Tensor ids;
  at::Tensor e = oracle::normal({segments.rows(), c.columns}, 12, c.type);
};

TEST_P(Lookup, NormEqualsTheOraclesAndItsErrorIsOfFloat64) {
  NormParts parts = zero_parts(segments.units());
  embedding_norm(there(ids), there(e), segments, c.table_rows, parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double exact = oracle::squared_norm(gradient(u, e));
    const double mass = oracle::unit_rows(e, segments, u).norm(2, {1}).sum().item<double>();
    EXPECT_NEAR(at_unit(parts.value, u), exact, at_unit(parts.value_error, u) + 1e-13 * (exact + 1e-8 * mass * mass));
    EXPECT_LE(at_unit(parts.value_error, u), 1e-12 * mass * mass);
    EXPECT_GE(at_unit(parts.mass, u), mass * (1 - 1e-14));
    EXPECT_LE(at_unit(parts.mass, u), mass * (1 + 1e-11));
  }
}

TEST_P(Lookup, UpperBoundCoversTheContributionAsComputed) {
  NormParts parts = zero_parts(segments.units());
  embedding_norm(there(ids), there(e), segments, c.table_rows, parts);
  const at::Tensor bound = norm_upper_bound_sq(parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    at::Tensor contribution = there(at::zeros({c.table_rows, c.columns}, c.type));
    embedding_scaled_sum(there(ids), there(e), segments, there(oracle::only(u, segments.units())), contribution);
    EXPECT_GE(at_unit(bound, u), oracle::squared_norm(contribution)) << "unit " << u;
  }
}

TEST_P(Lookup, ScaledSumEqualsTheOracleThoughUnitsOfFactorZeroAreNotFinite) {
  at::Tensor factors = at::rand({segments.units()});
  at::Tensor expected = at::ones({c.table_rows, c.columns}, at::kDouble), magnitude = expected.clone();
  for (int64_t u = 0; u < segments.units(); ++u) {
    if (u % 2 == 1) {
      factors[u] = 0.0f;
      e.slice(0, segments.begin(u), segments.end(u)).fill_(std::numeric_limits<float>::infinity());
      continue;
    }
    expected += at_unit(factors, u) * gradient(u, e);
    magnitude += at_unit(factors, u) * gradient(u, e.abs());
  }
  at::Tensor out = there(at::ones({c.table_rows, c.columns}, c.type));
  embedding_scaled_sum(there(ids), there(e), segments, there(factors), out);
  const double gamma = c.type == at::kFloat ? gamma_float32(segments.longest() * segments.units() + 2) : 1e-14;
  EXPECT_LE(((out.cpu() - expected).abs() - gamma * magnitude).max().item<double>(), 1e-15);
}

TEST_P(Lookup, AddsIntoHeldGradientsAndTakesTheNormAnew) {
  const at::Tensor before = oracle::normal({segments.units(), c.table_rows, c.columns}, 13, c.type);
  at::Tensor there_held = there(before.clone());
  NormParts parts = zero_parts(segments.units());
  parts.value.fill_(1e6);
  embedding_into_held(there(ids), there(e), segments, there_held, parts);
  const at::Tensor held = there_held.cpu();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const at::Tensor start = before[u].to(at::kDouble);
    const double gamma = c.type == at::kFloat ? gamma_float32(segments.length(u) + 1) : 1e-14;
    const at::Tensor allowed = gamma * (start.abs() + gradient(u, e.abs()));
    EXPECT_LE(((held[u] - start - gradient(u, e)).abs() - allowed).max().item<double>(), 1e-15);
    const double squared = oracle::squared_norm(held[u]);
    EXPECT_NEAR(at_unit(parts.value, u), squared, at_unit(parts.value_error, u) + 1e-13 * squared);
  }
}

INSTANTIATE_TEST_SUITE_P(, Lookup,
                         testing::Values(LookupCase{"Random", {9, 4, 12}, 7, 5},                                 //
                                         LookupCase{"Distinct", {6, 9}, 20, 33, Ids::kDistinct},                 //
                                         LookupCase{"AllTheSame", {31, 1, 8}, 3, 40, Ids::kAllTheSame},          //
                                         LookupCase{"PairsThatCancel", {8, 20}, 50, 16, Ids::kPairsThatCancel},  //
                                         LookupCase{"EmptyUnits", {0, 3, 0}, 4, 4},                              //
                                         LookupCase{"NoUnits", {}, 4, 4},                                        //
                                         LookupCase{"Float64", {9, 4}, 7, 5, Ids::kRandom, at::kDouble}),
                         [](const auto& test) { return test.param.name; });

TEST(EmbeddingNorm, AnIdOutOfRangeIsNamedOrItsUnitHasNoNorm) {
  const Segments segments = oracle::segments_of({3});
  const at::Tensor e = there(at::zeros({3, 2}));
  NormParts parts = zero_parts(1);
  for (const int64_t bad : {int64_t{-1}, int64_t{7}}) {
    const at::Tensor ids = there(at::tensor(std::vector<int64_t>{0, 6, bad}, at::kLong));
    if (!backend::device().is_cpu()) {
      embedding_norm(ids, e, segments, 7, parts);
      EXPECT_EQ(at_unit(norm_upper_bound_sq(parts), 0), std::numeric_limits<double>::infinity());
      continue;
    }
    try {
      embedding_norm(ids, e, segments, 7, parts);
      FAIL() << "accepted " << bad;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("ids[2] = " + std::to_string(bad)));
    }
    EXPECT_THROW(embedding_scaled_sum(ids, e, segments, there(at::ones({1})), there(at::zeros({7, 2}))),
                 std::invalid_argument);
    EXPECT_THROW(embedding_into_held(ids, e, segments, there(at::zeros({1, 7, 2})), parts), std::invalid_argument);
  }
}

TEST(EmbeddingNorm, NonFiniteRowMakesItsUnitsBoundInfiniteAndNoOther) {
  const Segments segments = oracle::segments_of({2, 2});
  const at::Tensor ids = at::tensor(std::vector<int64_t>{0, 1, 1, 1}, at::kLong);
  at::Tensor e = at::ones({4, 2});
  e[3][0] = std::numeric_limits<float>::quiet_NaN();
  NormParts parts = zero_parts(2);
  embedding_norm(there(ids), there(e), segments, 2, parts);
  EXPECT_TRUE(std::isfinite(at_unit(norm_upper_bound_sq(parts), 0)));
  EXPECT_EQ(at_unit(norm_upper_bound_sq(parts), 1), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace ghostshard::kernels
