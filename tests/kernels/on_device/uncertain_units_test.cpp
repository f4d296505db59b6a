// Units whose Gram norm is not certain in the rows' own arithmetic: their norm comes from the gradient itself if that
// is sooner than Gram matrices in float64, with an error that covers the distance of the computed gradient from the
// exact one.
#include "kernels/linear_norm.h"
#include "kernels/norm_parts/bound.h"
#include "tests/kernels/linear_case.h"

namespace ghostshard::kernels {
namespace {

struct Case {
  const char* name;
  int64_t rows, inputs, outputs;
  at::ScalarType type;
  bool from_gradient;
};
class Uncertain : public testing::TestWithParam<Case> {};

TEST_P(Uncertain, AreFoundTheSoonerWay) {
  const Case& c = GetParam();
  // The first unit cancels, the second is certain at once.
  const Segments segments = oracle::segments_of({c.rows, 3});
  const oracle::Rows cancelling = oracle::rows_like(Tokens::kCancel1e4, c.rows, c.inputs, c.outputs);
  const oracle::Rows ordinary = oracle::rows_like(Tokens::kIndependent, 3, c.inputs, c.outputs);
  const at::Tensor a = at::cat({cancelling.a, ordinary.a}).to(c.type),
                   g = at::cat({cancelling.g, ordinary.g}).to(c.type);
  NormParts gram = zero_parts(2), held = zero_parts(2);
  gram_norm(there(a), there(g), segments, gram);
  per_unit_gradient(there(a), there(g), segments, there(at::empty({2, c.outputs, c.inputs})), false, held);

  EXPECT_EQ(at_unit(gram.value, 0) == at_unit(held.value, 0), c.from_gradient);
  EXPECT_NE(at_unit(gram.value, 1), at_unit(held.value, 1)) << "the certain one is the Grams'";
  for (int64_t u = 0; u < 2; ++u) {
    const double exact = oracle::squared_norm(oracle::linear_gradient(a, g, segments, u));
    EXPECT_NEAR(at_unit(gram.value, u), exact, at_unit(gram.value_error, u) + 1e-12 * exact) << "unit " << u;
  }
  if (c.from_gradient) {
    const double distance = at_unit(gram.sum_error, 0) * at_unit(gram.mass, 0);
    EXPECT_GE(at_unit(gram.value_error, 0), distance_of_squares(at_unit(gram.value, 0), distance));
  }
}

INSTANTIATE_TEST_SUITE_P(, Uncertain,
                         testing::Values(Case{"Long", 300, 64, 70, at::kFloat, true},
                                         Case{"ShortOfAWideLayer", 40, 700, 650, at::kFloat, false},
                                         Case{"ShortBesideTensorCores", 6, 700, 650, at::kBFloat16, true}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ghostshard::kernels
