// Rows of 16 bits, which the device takes and the CPU reference does not: tensor-core tiles compared with the float64
// oracle of the same 16-bit values. An error larger than that of float32 sums is a fault.
#include <cmath>
#include <limits>

#include "kernels/aligned_rows.h"
#include "kernels/device/rounding.h"
#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"
#include "tests/kernels/linear_case.h"

namespace ghostshard::kernels {
namespace {

const auto kCases =
    testing::Combine(testing::Values(at::kBFloat16, at::kHalf),
                     testing::Values(LinearCase{"Ragged", {3, 17, 1, 8}, 16, 5},                                 //
                                     LinearCase{"EmptyUnits", {0, 4, 0, 0, 2, 0}, 6, 3},                         //
                                     LinearCase{"NoUnits", {}, 4, 4},                                            //
                                     LinearCase{"OneColumn", {6, 3}, 1, 1},                                      //
                                     LinearCase{"OddColumns", {5, 9}, 129, 67},                                  //
                                     LinearCase{"ExactlyATile", {64}, 64, 64},                                   //
                                     LinearCase{"OneMoreThanATile", {65, 2}, 65, 33},                            //
                                     LinearCase{"SeveralTiles", {150, 129}, 24, 72},                             //
                                     LinearCase{"SeveralChunks", {20}, 300, 130},                                //
                                     LinearCase{"SharedDirection", {40, 70}, 96, 32, Tokens::kSharedDirection},  //
                                     LinearCase{"CancelExactly", {2, 40}, 64, 30, Tokens::kCancelExactly},       //
                                     LinearCase{"ZeroGradients", {4, 7}, 32, 32, Tokens::kZeroGradient}));

class SixteenBitRows : public testing::TestWithParam<std::tuple<at::ScalarType, LinearCase>> {
 protected:
  const LinearCase& c = std::get<1>(GetParam());
  const Segments segments = oracle::segments_of(c.lengths);
  const at::ScalarType type = std::get<0>(GetParam());
  const oracle::Rows wide = oracle::rows_like(c.tokens, segments.rows(), c.inputs, c.outputs);
  const oracle::Rows rows{.a = wide.a.to(type), .g = wide.g.to(type)};
  const at::Tensor a = there(rows.a), g = there(rows.g);

  static double gamma_of_sum(int64_t length) {
    return gamma_float32(device::sum_terms(device::ElementType::kBFloat16, length));
  }
  at::Tensor gradient(int64_t unit) const { return oracle::linear_gradient(rows.a, rows.g, segments, unit); }
  at::Tensor magnitude(int64_t unit) const { return oracle::linear_magnitude(rows.a, rows.g, segments, unit); }

  // The contribution of one unit alone.
  at::Tensor contribution(int64_t unit) const {
    at::Tensor out = there(at::zeros({c.outputs, c.inputs}));
    scaled_sum_rows(a, g, segments, there(oracle::only(unit, segments.units())), out);
    return out.cpu().to(at::kDouble);
  }
};

TEST_P(SixteenBitRows, GramNormErrsByNoMoreThanItsBoundAndIsCertain) {
  NormParts parts = zero_parts(segments.units());
  gram_norm(a, g, segments, parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double exact = oracle::squared_norm(gradient(u)), mass = at_unit(parts.mass, u);
    const double error = at_unit(parts.value_error, u);
    EXPECT_NEAR(at_unit(parts.value, u), exact, error + 1e-12 * exact) << "unit " << u;
    EXPECT_LE(error, std::max(1e-3 * exact, 1e-10 * mass * mass)) << "unit " << u;
  }
}

TEST_P(SixteenBitRows, UpperBoundCoversTheContributionAsComputed) {
  NormParts gram = zero_parts(segments.units()), passing = zero_parts(segments.units());
  gram_norm(a, g, segments, gram);
  passing_norm(a, g, segments, passing);
  const at::Tensor by_gram = norm_upper_bound_sq(gram), by_passing = norm_upper_bound_sq(passing);
  for (int64_t u = 0; u < segments.units(); ++u) {
    const double squared = oracle::squared_norm(contribution(u));
    EXPECT_GE(at_unit(by_gram, u), squared) << "unit " << u;
    EXPECT_GE(at_unit(by_passing, u), squared) << "unit " << u;
  }
}

TEST_P(SixteenBitRows, HeldGradientsAreFloat32SumsAndTheNormIsThatOfTheirValues) {
  const at::Tensor held = there(at::full({segments.units(), c.outputs, c.inputs}, std::nan("")).to(at::kFloat));
  NormParts parts = zero_parts(segments.units());
  per_unit_gradient(a, g, segments, held, false, parts);
  for (int64_t u = 0; u < segments.units(); ++u) {
    expect_within(held[u].cpu().to(at::kDouble), gradient(u), gamma_of_sum(segments.length(u)) * magnitude(u));
    const double squared = oracle::squared_norm(held[u]);
    EXPECT_NEAR(at_unit(parts.value, u), squared, at_unit(parts.value_error, u) + 1e-13 * squared);
  }
}

TEST_P(SixteenBitRows, FactorsScaleTheSumsAndNotTheRows) {
  // Factors that 8 bits cannot hold: c·g rounded to the rows' type would be off by 2^-9, 100 times the allowed error.
  const at::Tensor factors = at::linspace(0.3001, 0.9003, segments.units(), at::kFloat);
  at::Tensor out = there(at::zeros({c.outputs, c.inputs}));
  scaled_sum_rows(a, g, segments, there(factors), out);
  at::Tensor expected = at::zeros({c.outputs, c.inputs}, at::kDouble), magnitudes = expected.clone();
  for (int64_t u = 0; u < segments.units(); ++u) {
    expected += at_unit(factors, u) * gradient(u);
    magnitudes += at_unit(factors, u) * magnitude(u);
  }
  const int64_t terms = device::sum_terms(device::ElementType::kBFloat16, segments.longest()) + segments.units() + 2;
  expect_within(out.cpu().to(at::kDouble), expected, gamma_float32(terms) * magnitudes);
}

INSTANTIATE_TEST_SUITE_P(, SixteenBitRows, kCases, [](const auto& test) {
  return std::string(std::get<1>(test.param).name) + (std::get<0>(test.param) == at::kHalf ? "Half" : "BFloat16");
});

TEST(SixteenBitRowsAlone, ANonFiniteRowMakesItsUnitsBoundInfiniteAndNoOther) {
  const Segments segments = oracle::segments_of({3, 4, 2});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    oracle::Rows rows = oracle::rows_like(Tokens::kIndependent, 9, 6, 5);
    rows.g[4][2] = bad;
    NormParts parts = zero_parts(3);
    gram_norm(there(rows.a.to(at::kBFloat16)), there(rows.g.to(at::kBFloat16)), segments, parts);
    const at::Tensor bound = norm_upper_bound_sq(parts);
    EXPECT_TRUE(std::isfinite(at_unit(bound, 0)));
    EXPECT_EQ(at_unit(bound, 1), std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isfinite(at_unit(bound, 2)));
  }
}

// Rows that begin at multiples of 16 bytes, with values between them that must not be read, give the same bits.
TEST(SixteenBitRowsAlone, ThatLieApartAreTheSameRows) {
  const Segments segments = oracle::segments_of({70, 0, 3});
  for (const auto& [inputs, outputs] : {std::pair<int64_t, int64_t>{33, 131}, {1, 9}, {8, 65}}) {
    const oracle::Rows rows = oracle::rows_like(Tokens::kCancel1e4, 73, inputs, outputs);
    const auto apart = [](const at::Tensor& x) {
      at::Tensor longer = at::full({x.size(0), (x.size(1) + 7) / 8 * 8 + 8}, std::nan(""), x.options());
      longer.narrow(1, 0, x.size(1)).copy_(x);
      return there(longer).narrow(1, 0, x.size(1));
    };
    const at::Tensor a = rows.a.to(at::kBFloat16), g = rows.g.to(at::kBFloat16);
    const auto measured = [&](const at::Tensor& of_a, const at::Tensor& of_g) {
      std::vector<at::Tensor> found;
      for (const auto norm : {&gram_norm, &passing_norm}) {
        NormParts parts = zero_parts(3);
        norm(of_a, of_g, segments, parts);
        found.push_back(parts.value.cpu());
      }
      const at::Tensor held = there(at::zeros({3, g.size(1), a.size(1)})),
                       sum = there(at::zeros({g.size(1), a.size(1)}));
      NormParts parts = zero_parts(3);
      per_unit_gradient(of_a, of_g, segments, held, false, parts);
      scaled_sum_rows(of_a, of_g, segments, there(at::full({3}, 0.3F)), sum);
      found.insert(found.end(), {held.cpu(), sum.cpu()});
      return found;
    };
    const auto dense = measured(there(a), there(g)), lying_apart = measured(apart(a), apart(g));
    for (size_t i = 0; i < dense.size(); ++i) EXPECT_TRUE(at::equal(dense[i], lying_apart[i])) << i << ", " << inputs;
  }
}

// The engine's form of rows with an odd number of columns.
TEST(SixteenBitRowsAlone, AreAlignedOnADevice) {
  const at::Tensor x = at::randn({5, 9});
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow = there(x.to(type)), aligned = aligned_rows(narrow, type);
    EXPECT_EQ(aligned.stride(0), 16);
    EXPECT_TRUE(at::equal(aligned.cpu(), x.to(type)));
    EXPECT_TRUE(at::equal(aligned_rows(there(x), type).cpu(), x.to(type))) << "rounded on the way";
    EXPECT_TRUE(aligned_rows(aligned, type).is_same(aligned));
    const at::Tensor even = there(at::zeros({5, 24}).to(type));
    EXPECT_TRUE(aligned_rows(even, type).is_same(even));
    EXPECT_TRUE(aligned_rows(x.to(type), type).is_contiguous()) << "the CPU's kernels take dense rows";
  }
  const at::Tensor wide = there(x);
  EXPECT_TRUE(aligned_rows(wide, at::kFloat).is_same(wide));
}

// Norms whose Gram sums overflow float32 in the first tile are found another way.
TEST(SixteenBitRowsAlone, LargeRowsAreNotLost) {
  const Segments segments = oracle::segments_of({6});
  oracle::Rows rows = oracle::rows_like(Tokens::kIndependent, 6, 40, 24);
  rows.a = rows.a.mul(1e19).to(at::kBFloat16), rows.g = rows.g.mul(1e18).to(at::kBFloat16);
  NormParts parts = zero_parts(1);
  gram_norm(there(rows.a), there(rows.g), segments, parts);
  const double exact = oracle::squared_norm(oracle::linear_gradient(rows.a, rows.g, segments, 0));
  EXPECT_NEAR(at_unit(parts.value, 0), exact, at_unit(parts.value_error, 0));
  EXPECT_LE(at_unit(parts.value_error, 0), 1e-3 * exact);
}

}  // namespace
}  // namespace ghostshard::kernels
