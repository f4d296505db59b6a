#include "kernels/linear_norm.h"

#include <cmath>
#include <limits>

#include "kernels/norm_parts/bound.h"
#include "kernels/scaled_sum.h"
#include "tests/kernels/linear_case.h"

namespace ghostshard::kernels {
namespace {

constexpr double kUnderflow = 0x1p-126;  // that an element of a float32 sum may lose

std::string case_name(const testing::TestParamInfo<LinearCase>& info) { return info.param.name; }

const auto kCases = testing::Values(LinearCase{"EqualLengths", {5, 5, 5}, 7, 11},                                 //
                                    LinearCase{"Ragged", {3, 17, 1, 8}, 16, 5},                                   //
                                    LinearCase{"EmptyUnits", {0, 4, 0, 0, 2, 0}, 6, 3},                           //
                                    LinearCase{"OneRowUnits", {1, 1, 1, 1}, 9, 2},                                //
                                    LinearCase{"NoUnits", {}, 4, 4},                                              //
                                    LinearCase{"OneColumn", {6, 3}, 1, 1},                                        //
                                    LinearCase{"SeveralColumnChunks", {20, 9}, 700, 300},                         //
                                    LinearCase{"SeveralPanels", {4, 3}, 1000, 1300},                              //
                                    LinearCase{"LongAndShared", {300}, 30, 20, Tokens::kSharedDirection},         //
                                    LinearCase{"SeveralTiles", {300, 129}, 24, 40},                               //
                                    LinearCase{"SeveralColumnTiles", {1100}, 8, 4},                               //
                                    LinearCase{"SharedDirection", {40, 64}, 300, 32, Tokens::kSharedDirection},   //
                                    LinearCase{"CancelTo1e4", {2, 6, 40}, 64, 300, Tokens::kCancel1e4},           //
                                    LinearCase{"CancelExactly", {2, 40}, 64, 300, Tokens::kCancelExactly},        //
                                    LinearCase{"LargeMagnitudes", {4, 7}, 32, 32, Tokens::kLarge},                //
                                    LinearCase{"GramEntriesUnderflow", {4, 7}, 32, 32, Tokens::kTiny},            //
                                    LinearCase{"ZeroGradients", {4, 7}, 32, 32, Tokens::kZeroGradient},           //
                                    LinearCase{"Float64", {3, 0, 9}, 10, 12, Tokens::kIndependent, at::kDouble},  //
                                    LinearCase{"Float64Cancel", {4, 6}, 10, 12, Tokens::kCancel1e4, at::kDouble});

class Linear : public testing::TestWithParam<LinearCase> {
 protected:
  const LinearCase& c = GetParam();
  const Segments segments = oracle::segments_of(c.lengths);
  const oracle::Rows rows = oracle::rows_like(c.tokens, segments.rows(), c.inputs, c.outputs, c.type);
  const bool in_float32 = c.type == at::kFloat;

  double gamma(int64_t terms) const { return in_float32 ? gamma_float32(terms) : gamma_float64(terms); }
  at::Tensor gradient(int64_t unit) const { return oracle::linear_gradient(rows.a, rows.g, segments, unit); }
  at::Tensor magnitude(int64_t unit) const { return oracle::linear_magnitude(rows.a, rows.g, segments, unit); }

  // Compares each unit's replayed contribution, as the clipped sum computes it, with the bound of its norm.
  void expect_bound_covers_contributions(const NormParts& parts) const {
    const at::Tensor bound = norm_upper_bound_sq(parts);
    for (int64_t u = 0; u < segments.units(); ++u) {
      at::Tensor contribution = there(at::zeros({c.outputs, c.inputs}, c.type));
      scaled_sum_rows(there(rows.a), there(rows.g), segments, there(oracle::only(u, segments.units())), contribution);
      EXPECT_GE(at_unit(bound, u), oracle::squared_norm(contribution)) << "unit " << u;
    }
  }

  NormParts measured_by(decltype(&gram_norm) norm) const {
    NormParts parts = zero_parts(segments.units());
    norm(there(rows.a), there(rows.g), segments, parts);
    return parts;
  }
};

class Hold : public Linear {};

TEST_P(Hold, WritesEveryUnitsGradientAndTheNormOfExactlyTheseValues) {
  const at::Tensor out = there(at::full({segments.units(), c.outputs, c.inputs}, std::nan(""), c.type));
  NormParts parts = zero_parts(segments.units());
  per_unit_gradient(there(rows.a), there(rows.g), segments, out, false, parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    expect_within(out[u], gradient(u), gamma(segments.length(u)) * magnitude(u) + kUnderflow);
    const double squared = oracle::squared_norm(out[u]);
    EXPECT_NEAR(at_unit(parts.value, u), squared, at_unit(parts.value_error, u) + 1e-13 * squared);
    EXPECT_LE(at_unit(parts.value_error, u), 1e-9 * squared);
    EXPECT_EQ(at_unit(parts.mass, u), 0);
    EXPECT_EQ(at_unit(parts.sum_error, u), 0);
  }
}

TEST_P(Hold, AccumulatesAndTakesTheNormAnew) {
  const at::Tensor before = oracle::normal({segments.units(), c.outputs, c.inputs}, 9, c.type);
  const at::Tensor out = there(before.clone());
  NormParts parts = zero_parts(segments.units());
  parts.value.fill_(1e6);
  per_unit_gradient(there(rows.a), there(rows.g), segments, out, true, parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    const at::Tensor start = before[u].to(at::kDouble);
    expect_within(out[u], start + gradient(u),
                  gamma(segments.length(u) + 1) * (start.abs() + magnitude(u)) + kUnderflow);
    const double squared = oracle::squared_norm(out[u]);
    EXPECT_NEAR(at_unit(parts.value, u), squared, at_unit(parts.value_error, u) + 1e-13 * squared);
  }
}

INSTANTIATE_TEST_SUITE_P(, Hold, kCases, case_name);

class Gram : public Linear {
 protected:
  NormParts measured() const { return measured_by(&gram_norm); }
};

TEST_P(Gram, ErrsByNoMoreThanItsBound) {
  const NormParts parts = measured();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double exact = oracle::squared_norm(gradient(u));
    // The oracle's own error: gamma of its sum times the magnitudes.
    const double oracle_error =
        4 * gamma_float64(segments.length(u) + 2) * std::sqrt(exact * oracle::squared_norm(magnitude(u))) +
        1e-12 * exact;
    EXPECT_NEAR(at_unit(parts.value, u), exact, at_unit(parts.value_error, u) + oracle_error) << "unit " << u;
  }
}

TEST_P(Gram, IsCertainEvenWhereTokensCancel) {
  const NormParts parts = measured();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double mass = at_unit(parts.mass, u), value = at_unit(parts.value, u);
    // Either within 1e-3; or in float64, with a value that cancels below the resolution of float64; or, on a device, as
    // far from the exact one as the sum itself will be.
    const double in_float64 =
        4 * gamma_float64(c.inputs + c.outputs + segments.length(u) * segments.length(u) + 64) * mass * mass;
    const double as_summed = distance_of_squares(value, at_unit(parts.sum_error, u) * mass);
    const double best = backend::device().is_cpu() ? in_float64 : std::max(in_float64, as_summed * (1 + 1e-3));
    EXPECT_LE(at_unit(parts.value_error, u), std::max(1e-3 * value, best)) << "unit " << u;
  }
}

TEST_P(Gram, MassIsTheSumOfTheRowsNormsRoundedUp) {
  const NormParts parts = measured();
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double mass = oracle::unit_rows(rows.a, segments, u)
                            .norm(2, {1})
                            .dot(oracle::unit_rows(rows.g, segments, u).norm(2, {1}))
                            .item<double>();
    EXPECT_GE(at_unit(parts.mass, u), mass * (1 - 1e-14));
    EXPECT_LE(at_unit(parts.mass, u), mass * (1 + 1e-11));
  }
}

// Everything rests on this claim.
TEST_P(Gram, UpperBoundCoversTheContributionAsComputed) { expect_bound_covers_contributions(measured()); }

TEST_P(Gram, UpperBoundIsWithinAThousandthWhereNothingCancels) {
  if (c.tokens == Tokens::kCancel1e4 || c.tokens == Tokens::kCancelExactly) {
    const NormParts parts = measured();
    EXPECT_TRUE(at::isfinite(norm_upper_bound_sq(parts)).all().item<bool>());
    return;
  }
  const NormParts parts = measured();
  const at::Tensor bound = norm_upper_bound_sq(parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double exact = oracle::squared_norm(gradient(u));
    const double sum = gamma(segments.length(u) + 2) * at_unit(parts.mass, u);
    EXPECT_LE(at_unit(bound, u), std::pow(std::sqrt(exact * 1.0021) + sum, 2) * (1 + 1e-12)) << "unit " << u;
  }
}

TEST_P(Gram, AddsToWhatThePartsHoldAlready) {
  const NormParts once = measured();
  NormParts twice = measured();
  gram_norm(there(rows.a), there(rows.g), segments, twice);
  EXPECT_TRUE(at::equal(twice.value, 2 * once.value));
  EXPECT_TRUE(at::equal(twice.value_error, 2 * once.value_error));
  EXPECT_TRUE(at::equal(twice.mass, 2 * once.mass));
  EXPECT_TRUE(at::equal(twice.sum_error, once.sum_error));
}

INSTANTIATE_TEST_SUITE_P(, Gram, kCases, case_name);

class Passing : public Linear {
 protected:
  NormParts measured() const { return measured_by(&passing_norm); }
};

TEST_P(Passing, UpperBoundCoversTheContributionAsComputed) { expect_bound_covers_contributions(measured()); }

TEST_P(Passing, UpperBoundExceedsTheNormByRoundingOnly) {
  const NormParts parts = measured();
  const at::Tensor bound = norm_upper_bound_sq(parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double exact = std::sqrt(oracle::squared_norm(gradient(u)));
    // At most three roundings of every row: in forming panels, in forming the later sum, and in the panels' norm.
    const double rounding = 3 * gamma(segments.length(u) + 2) * at_unit(parts.mass, u);
    EXPECT_LE(std::sqrt(at_unit(bound, u)), exact * 1.0011 + rounding + 1e-6 * at_unit(parts.mass, u)) << "unit " << u;
  }
}

INSTANTIATE_TEST_SUITE_P(, Passing, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(ByPanels, Passing,
                         testing::Values(LinearCase{"Long", {700, 0, 650}, 40, 60},
                                         LinearCase{"Wide", {600}, 300, 1300},
                                         LinearCase{"LongAndCancelling", {700}, 24, 40, Tokens::kCancel1e4},
                                         LinearCase{"LongFloat64", {700}, 24, 40, Tokens::kIndependent, at::kDouble}),
                         case_name);

TEST(PassingNorm, IsThatOfTheGradientsOwnValuesWhereUnitsAreLong) {
  // Panels differ from Gram matrices in this: their value is the square of the product's result, to the bit.
  const Segments segments = oracle::segments_of({700});
  const oracle::Rows rows = oracle::rows_like(Tokens::kIndependent, 700, 40, 60, at::kFloat);
  NormParts parts = zero_parts(1), held = zero_parts(1);
  passing_norm(there(rows.a), there(rows.g), segments, parts);
  per_unit_gradient(there(rows.a), there(rows.g), segments, there(at::empty({1, 60, 40})), false, held);
  EXPECT_EQ(at_unit(parts.value, 0), at_unit(held.value, 0));
  // And its error covers any sum of so many rows.
  const double distance = at_unit(parts.sum_error, 0) * at_unit(parts.mass, 0);
  EXPECT_GE(at_unit(parts.value_error, 0), distance_of_squares(at_unit(parts.value, 0), distance));
  EXPECT_GT(at_unit(parts.mass, 0), 0.0);
}

struct BadRow {
  const char* name;
  float value;
};

class NonFinite : public testing::TestWithParam<BadRow> {};

TEST_P(NonFinite, RowMakesItsUnitsBoundInfiniteAndNoOther) {
  const Segments segments = oracle::segments_of({3, 4, 2});
  for (const bool in_a : {true, false}) {
    oracle::Rows rows = oracle::rows_like(Tokens::kIndependent, 9, 6, 5);
    (in_a ? rows.a : rows.g)[4][2] = GetParam().value;
    NormParts gram = zero_parts(3), hold = zero_parts(3);
    gram_norm(there(rows.a), there(rows.g), segments, gram);
    const at::Tensor out = there(at::zeros({3, 5, 6}));
    per_unit_gradient(there(rows.a), there(rows.g), segments, out, false, hold);
    for (const NormParts& parts : {gram, hold}) {
      const at::Tensor bound = norm_upper_bound_sq(parts);
      EXPECT_TRUE(std::isfinite(at_unit(bound, 0)));
      EXPECT_EQ(at_unit(bound, 1), std::numeric_limits<double>::infinity());
      EXPECT_TRUE(std::isfinite(at_unit(bound, 2)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, NonFinite,
                         testing::Values(BadRow{"Nan", std::numeric_limits<float>::quiet_NaN()},
                                         BadRow{"Infinity", std::numeric_limits<float>::infinity()}),
                         [](const auto& test) { return test.param.name; });

TEST(LinearNorm, RefusesShapesThatDoNotFit) {
  const Segments segments = oracle::segments_of({2, 3});
  const at::Tensor a = there(at::zeros({5, 4})), g = there(at::zeros({5, 3}));
  NormParts parts = zero_parts(2), short_parts = zero_parts(1);
  EXPECT_THROW(gram_norm(a.slice(0, 0, 4), g, segments, parts), std::invalid_argument);
  EXPECT_THROW(gram_norm(a, g.to(at::kDouble), segments, parts), std::invalid_argument);
  EXPECT_THROW(gram_norm(a.to(at::kLong), g.to(at::kLong), segments, parts), std::invalid_argument);
  EXPECT_THROW(gram_norm(there(at::zeros({4, 5})).t(), g, segments, parts), std::invalid_argument) << "not contiguous";
  EXPECT_THROW(gram_norm(a, g, segments, short_parts), std::invalid_argument);
  EXPECT_THROW(gram_norm(at::Tensor(), g, segments, parts), std::invalid_argument);
  EXPECT_THROW(per_unit_gradient(a, g, segments, there(at::zeros({2, 4, 3})), false, parts), std::invalid_argument);
  EXPECT_THROW(per_unit_gradient(a, g, segments, there(at::zeros({2, 3, 4}, at::kDouble)), false, parts),
               std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::kernels
