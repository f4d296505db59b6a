#include "kernels/linear_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/embedding_norm.h"
#include "kernels/norm_parts/bound.h"
#include "kernels/scaled_sum.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;
using backend::zero_parts;
using oracle::at_unit;
using oracle::Tokens;

struct LinearCase {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t inputs, outputs;
  Tokens tokens = Tokens::kIndependent;
  at::ScalarType type = at::kFloat;
};

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

  // Each unit's replayed contribution, as the clipped sum computes it, against the bound of its norm.
  void expect_bound_covers_contributions(const NormParts& parts) const {
    const at::Tensor bound = norm_upper_bound_sq(parts);
    for (int64_t u = 0; u < segments.units(); ++u) {
      at::Tensor contribution = there(at::zeros({c.outputs, c.inputs}, c.type));
      scaled_sum_rows(there(rows.a), there(rows.g), segments, there(oracle::only(u, segments.units())), contribution);
      EXPECT_GE(at_unit(bound, u), oracle::squared_norm(contribution)) << "unit " << u;
    }
  }

  // Elementwise |x − expected| ≤ error·magnitude, with one unit in the last place of the oracle and one denormal.
  static void expect_within(const at::Tensor& x, const at::Tensor& expected, const at::Tensor& allowed) {
    const at::Tensor excess = (x.cpu().to(at::kDouble) - expected).abs() - allowed - 1e-15 * expected.abs() - 0x1p-126;
    EXPECT_TRUE(excess.numel() == 0 || excess.max().item<double>() <= 0) << excess.max();
  }
};

class Hold : public Linear {};

TEST_P(Hold, WritesEveryUnitsGradientAndTheNormOfExactlyTheseValues) {
  const at::Tensor out = there(at::full({segments.units(), c.outputs, c.inputs}, std::nan(""), c.type));
  NormParts parts = zero_parts(segments.units());
  per_unit_gradient(there(rows.a), there(rows.g), segments, out, false, parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    expect_within(out[u], gradient(u), gamma(segments.length(u)) * magnitude(u));
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
    expect_within(out[u], start + gradient(u), gamma(segments.length(u) + 1) * (start.abs() + magnitude(u)));
    const double squared = oracle::squared_norm(out[u]);
    EXPECT_NEAR(at_unit(parts.value, u), squared, at_unit(parts.value_error, u) + 1e-13 * squared);
  }
}

INSTANTIATE_TEST_SUITE_P(, Hold, kCases, case_name);

class Gram : public Linear {
 protected:
  NormParts measured() const {
    NormParts parts = zero_parts(segments.units());
    gram_norm(there(rows.a), there(rows.g), segments, parts);
    return parts;
  }
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
    // Either within 1e-3, or in float64 and cancelled below what float64 can tell; or, on a device, as far as the sum
    // itself will be.
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

// The claim everything rests on.
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
  NormParts measured() const {
    NormParts parts = zero_parts(segments.units());
    passing_norm(there(rows.a), there(rows.g), segments, parts);
    return parts;
  }
};

TEST_P(Passing, UpperBoundCoversTheContributionAsComputed) { expect_bound_covers_contributions(measured()); }

TEST_P(Passing, UpperBoundExceedsTheNormByRoundingOnly) {
  const NormParts parts = measured();
  const at::Tensor bound = norm_upper_bound_sq(parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double exact = std::sqrt(oracle::squared_norm(gradient(u)));
    // Three roundings of every row at most: in forming panels, in their later sum, and what the norm of the first is
    // off.
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
  // What tells panels from Grams: their value is the square of what the product gives, to the bit.
  const Segments segments = oracle::segments_of({700});
  const oracle::Rows rows = oracle::rows_like(Tokens::kIndependent, 700, 40, 60, at::kFloat);
  NormParts parts = zero_parts(1), held = zero_parts(1);
  passing_norm(there(rows.a), there(rows.g), segments, parts);
  per_unit_gradient(there(rows.a), there(rows.g), segments, there(at::empty({1, 60, 40})), false, held);
  EXPECT_EQ(at_unit(parts.value, 0), at_unit(held.value, 0));
  // And as far from the exact gradient's as any sum of so many rows may be.
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

// ---------------------------------------------------------------------------------------------------------------------
// The tied pair

struct TiedCase {
  const char* name;
  std::vector<int64_t> lookups, tokens;
  int64_t table_rows, columns;
  double cancel = 0;  // embedding = −(1 + cancel)·head where not 0; exactly where negative
  at::ScalarType type = at::kFloat;
};

class Tied : public testing::TestWithParam<TiedCase> {
 protected:
  void SetUp() override {
    at::manual_seed(5);
    ids = at::randint(c.table_rows, {s_e.rows()}, at::kLong);
    if (c.cancel != 0) {
      // Logit gradients on one token each, which the embedding meets with the opposite row.
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
    tied_cross_term(there(ids), there(e), s_e, there(h), there(b), s_h, parts);
    return parts;
  }

  const TiedCase& c = GetParam();
  const Segments s_e = oracle::segments_of(c.lookups), s_h = oracle::segments_of(c.tokens);
  at::Tensor ids;
  at::Tensor e = oracle::normal({s_e.rows(), c.columns}, 6, c.type);
  at::Tensor h = oracle::normal({s_h.rows(), c.columns}, 7, c.type);
  at::Tensor b = oracle::normal({s_h.rows(), c.table_rows}, 8, c.type);
};

TEST_P(Tied, EqualsTheNormOfTheSumOfBothGradients) {
  const NormParts parts = measured();
  for (int64_t u = 0; u < s_e.units(); ++u) {
    const double exact = oracle::squared_norm(gradient(u));
    const double mass = at_unit(parts.mass, u);
    EXPECT_NEAR(at_unit(parts.value, u), exact,
                at_unit(parts.value_error, u) + 1e-12 * exact + 0x1p-50 * mass * std::sqrt(exact) + 1e-30 * mass * mass)
        << "unit " << u;
    EXPECT_LE(at_unit(parts.value_error, u),
              std::max(1e-3 * exact, gamma_float64(4 * (c.columns + c.table_rows + 4096)) * mass * mass));
  }
}

TEST_P(Tied, UpperBoundCoversTheContributionAsComputed) {
  const at::Tensor bound = norm_upper_bound_sq(measured());
  for (int64_t u = 0; u < s_e.units(); ++u) {
    at::Tensor contribution = there(at::zeros({c.table_rows, c.columns}, c.type));
    const at::Tensor factors = there(oracle::only(u, s_e.units()));
    scaled_sum_rows(there(h), there(b), s_h, factors, contribution);
    embedding_scaled_sum(there(ids), there(e), s_e, factors, contribution);
    EXPECT_GE(at_unit(bound, u), oracle::squared_norm(contribution)) << "unit " << u;
  }
}

INSTANTIATE_TEST_SUITE_P(, Tied,
                         testing::Values(TiedCase{"SameRows", {5, 7}, {5, 7}, 13, 9},                     //
                                         TiedCase{"RaggedAndEmpty", {0, 6, 1, 3}, {4, 0, 2, 3}, 5, 300},  //
                                         TiedCase{"RepeatedIds", {40}, {40}, 3, 16},                      //
                                         TiedCase{"SeveralTiles", {150, 9}, {600, 9}, 31, 8},             //
                                         TiedCase{"CancelTo1e4", {6, 30}, {6, 30}, 300, 64, 1e-4},        //
                                         TiedCase{"CancelExactly", {6, 30}, {6, 30}, 300, 64, -1},        //
                                         TiedCase{"Float64", {5, 7}, {5, 7}, 13, 9, 0, at::kDouble}),
                         [](const auto& test) { return test.param.name; });

TEST(TiedCrossTerm, RefusesShapesThatDoNotFit) {
  const Segments segments = oracle::segments_of({2, 1}), others = oracle::segments_of({3});
  const at::Tensor e = there(at::zeros({3, 4})), h = there(at::zeros({3, 4})), b = there(at::zeros({3, 6}));
  NormParts parts = zero_parts(2);
  const auto with_ids = [](std::vector<int64_t> ids) { return there(at::tensor(ids, at::kLong)); };
  for (const auto& ids : {with_ids({0, 1, 6}), with_ids({0, -1, 5})}) {
    if (backend::device().is_cpu()) {
      EXPECT_THROW(tied_cross_term(ids, e, segments, h, b, segments, parts), std::invalid_argument);
    }
  }
  EXPECT_THROW(tied_cross_term(with_ids({0, 1, 5}), e, segments, h, b, others, parts), std::invalid_argument);
  EXPECT_THROW(tied_cross_term(with_ids({0, 1, 5}), e, segments, there(at::zeros({3, 5})), b, segments, parts),
               std::invalid_argument);
  EXPECT_NO_THROW(tied_cross_term(with_ids({0, 1, 5}), e, segments, h, b, segments, parts));
}

// ---------------------------------------------------------------------------------------------------------------------
// Choosing a way

struct ChoiceCase {
  const char* name;
  int64_t units, rows;
  LinearShape shape;
  int64_t memory_left_bytes;
  Recording expected;
};

constexpr int64_t kMuch = int64_t{1} << 40;
const MachineRates kRates = usual_rates(at::kCPU, at::kFloat);

class ChooseRecording : public testing::TestWithParam<ChoiceCase> {};

TEST_P(ChooseRecording, TakesTheFasterWayThatFits) {
  const ChoiceCase& c = GetParam();
  const Segments segments = oracle::segments_of(std::vector<int64_t>(static_cast<size_t>(c.units), c.rows));
  EXPECT_EQ(choose_recording(c.shape, segments, c.memory_left_bytes, kRates), c.expected);
}

INSTANTIATE_TEST_SUITE_P(
    , ChooseRecording,
    testing::Values(ChoiceCase{"LongUnitsAreHeld", 4, 512, {768, 768}, kMuch, Recording::kHold},
                    ChoiceCase{"LongUnitsOfAWideLayerAreHeld", 4, 512, {768, 3072}, kMuch, Recording::kHold},
                    ChoiceCase{"ShortUnitsReplay", 64, 16, {768, 768}, kMuch, Recording::kReplay},
                    ChoiceCase{"SmallMatricesAreHeld", 16, 100, {256, 256}, kMuch, Recording::kHold},
                    ChoiceCase{"OneRowUnitsReplay", 100, 1, {64, 4096}, kMuch, Recording::kReplay},
                    ChoiceCase{"ExactlyEnoughMemory", 4, 512, {768, 768}, 4 * 4 * 768 * 768, Recording::kHold},
                    ChoiceCase{"OneByteTooLittle", 4, 512, {768, 768}, 4 * 4 * 768 * 768 - 1, Recording::kReplay},
                    ChoiceCase{"NoMemory", 4, 512, {768, 768}, 0, Recording::kReplay},
                    ChoiceCase{"BeyondInt32", 3, 1000, {1 << 20, 1 << 12}, kMuch, Recording::kHold},
                    ChoiceCase{"EmptyBatch", 0, 0, {768, 768}, kMuch, Recording::kReplay}),
    [](const auto& test) { return test.param.name; });

TEST(RecordingCost, CountsWhatIsKept) {
  const Segments segments = oracle::segments_of({3, 5});
  EXPECT_EQ(recording_cost(Recording::kHold, {.inputs = 7, .outputs = 11}, segments, kRates).bytes_kept,
            2 * 7 * 11 * 4);
  EXPECT_EQ(recording_cost(Recording::kReplay, {.inputs = 7, .outputs = 11}, segments, kRates).bytes_kept, 8 * 11 * 4);
  EXPECT_EQ(recording_cost(Recording::kReplay, {.inputs = 7, .outputs = 11}, segments, kRates).flops,
            (9 + 25) * (7 + 11) + 2 * 8 * 7 * 11);
  const auto twice = recording_cost(Recording::kTwoPass, {.inputs = 7, .outputs = 11}, segments, kRates);
  EXPECT_EQ(twice.bytes_kept, 0);
  EXPECT_GE(twice.flops, 3 * 2 * 8 * 7 * 11) << "forward, both gradients";
}

TEST(RecordingCost, TwoPassesCostMoreThanEither) {
  for (const int64_t rows : {10, 100, 1000}) {
    const Segments segments = oracle::segments_of({rows, rows});
    const LinearShape shape{.inputs = 512, .outputs = 768};
    const double twice = recording_cost(Recording::kTwoPass, shape, segments, kRates).seconds;
    const double hold = recording_cost(Recording::kHold, shape, segments, kRates).seconds;
    const double replay = recording_cost(Recording::kReplay, shape, segments, kRates).seconds;
    EXPECT_GT(twice, std::min(hold, replay)) << rows;
  }
}

}  // namespace
}  // namespace ghostshard::kernels
