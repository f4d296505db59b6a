// What one unit does to the rounding of the others' sum: a search for units whose rows cancel, so that their gradient
// is 0 and they move the sum by rounding alone. docs/guarantee.md, "Rounding", derives the bound.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/clip_factors.h"
#include "kernels/embedding_norm.h"
#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"
#include "kernels/tied_pair.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;

// An emulated device computes a thousand times slower: there a few of the cases stand for all.
std::vector<double> masses() {
  if (backend::device().is_cpu()) return {1e2, 1e4, 1e5, 5e5, 1.4e6, 4e6, 1e9, 1e30};
  return {1.4e6};
}

struct Others {
  const char* name;
  int64_t units, rows;  // others, and rows of each
  double part;          // of each row's gradient, relative to the clip norm
  at::ScalarType type = at::kFloat;
};
std::string case_name(const testing::TestParamInfo<Others>& test) { return test.param.name; }

// Rows of all units in one coordinate, which float32 rounds most, with a cancelling unit before the given other one.
struct Batch {
  at::Tensor a, g;
  Segments segments;
};

constexpr int64_t kInputs = 24, kOutputs = 16;

at::Tensor in_one_coordinate(const std::vector<double>& values, int64_t columns, at::ScalarType type) {
  at::Tensor x = at::zeros({static_cast<int64_t>(values.size()), columns}, type);
  if (!values.empty()) x.select(1, 0).copy_(at::tensor(values, at::kDouble));
  return x;
}

// mass 0: the cancelling unit has no rows. Its rows are +, `between` rows of 0, −.
Batch batch_of(const Others& c, int64_t place, double mass, int64_t between) {
  std::vector<double> a, g;
  std::vector<int64_t> lengths;
  const auto other = [&] {
    for (int64_t t = 0; t < c.rows; ++t) a.push_back(1), g.push_back(c.part / static_cast<double>(c.rows));
    lengths.push_back(c.rows);
  };
  for (int64_t u = 0; u < place; ++u) other();
  if (mass > 0) {
    const double root = std::sqrt(mass / 2);
    a.push_back(root), g.push_back(root);
    for (int64_t t = 0; t < between; ++t) a.push_back(1), g.push_back(0);
    a.push_back(root), g.push_back(-root);
  }
  lengths.push_back(mass > 0 ? between + 2 : 0);
  for (int64_t u = place; u < c.units; ++u) other();
  return {in_one_coordinate(a, kInputs, c.type), in_one_coordinate(g, kOutputs, c.type), oracle::segments_of(lengths)};
}

// The cancelling unit and no other: what its own rounding leaves of it.
Batch alone(const Others& c, double mass, int64_t between) {
  Others none = c;
  none.units = 0;
  return batch_of(none, 0, mass, between);
}

at::Tensor factors_of(const NormParts& parts) { return clip_factors(norm_upper_bound_sq(parts), 1.0); }

using Norm = void (*)(const at::Tensor&, const at::Tensor&, const Segments&, NormParts&);

at::Tensor matrix_sum(const Batch& batch, Norm norm, bool may_share) {
  NormParts parts = backend::zero_parts(batch.segments.units());
  // The CPU's kernels take float32, which holds 16-bit values exactly.
  const auto rows = [](const at::Tensor& x) { return there(backend::device().is_cpu() ? x.to(at::kFloat) : x); };
  norm(rows(batch.a), rows(batch.g), batch.segments, parts);
  const at::Tensor out = there(at::zeros({kOutputs, kInputs}));
  scaled_sum_rows(rows(batch.a), rows(batch.g), batch.segments, factors_of(parts), out, may_share ? &parts : nullptr);
  return out.cpu().to(at::kDouble);
}

class SharedRounding : public testing::TestWithParam<Others> {
 protected:
  const Others& c = GetParam();
  // Of sum with the unit − sum without it − the unit alone: what is left is the others' rounding.
  double bound() const { return 2 * shared_rounding(c.units + 1); }
  // A few places in a small batch; in a large one those around the ends of blocks that products are cut into.
  std::vector<int64_t> places() const {
    if (!backend::device().is_cpu()) return {c.units / 2};
    std::vector<int64_t> found{0, c.units};
    for (const int64_t row : {1, 15, 16, 63, 64, 127, 128, 191, 192, 255, 256, 319, 320, 383, 384, 399}) {
      if (row / c.rows < c.units) found.push_back(row / c.rows);
    }
    return found;
  }
};

TEST_P(SharedRounding, OfAUnitWhoseRowsCancelStaysBelowTheBound) {
  for (const Norm norm : {Norm{gram_norm}, Norm{passing_norm}}) {
    for (const bool may_share : {true, false}) {
      if (!may_share && !backend::device().is_cpu()) continue;  // a device takes no notice
      const at::Tensor without = matrix_sum(batch_of(c, 0, 0, 0), norm, may_share);
      double worst = 0;
      for (const double mass : masses()) {
        for (const int64_t between : {0, 62, 254}) {
          if (between > 0 && !backend::device().is_cpu()) continue;
          const at::Tensor own = matrix_sum(alone(c, mass, between), norm, may_share);
          for (const int64_t place : places()) {
            const at::Tensor with = matrix_sum(batch_of(c, place, mass, between), norm, may_share);
            worst = std::max(worst, (with - without - own).norm().item<double>());
          }
        }
      }
      EXPECT_LE(worst, bound()) << (may_share ? "shared products" : "each unit by itself");
    }
  }
}

TEST_P(SharedRounding, OfLookupsThatCancelStaysBelowTheBound) {
  const auto sum = [&](const Batch& batch) {
    const at::Tensor e = there((batch.a.select(1, 0).unsqueeze(1) * batch.g).to(at::kFloat));
    const at::Tensor ids = there(at::zeros({e.size(0)}, at::kLong));
    NormParts parts = backend::zero_parts(batch.segments.units());
    embedding_norm(ids, e, batch.segments, 3, parts);
    const at::Tensor out = there(at::zeros({3, kOutputs}));
    embedding_scaled_sum(ids, e, batch.segments, factors_of(parts), out);
    return out.cpu().to(at::kDouble);
  };
  const at::Tensor without = sum(batch_of(c, 0, 0, 0));
  for (const double mass : masses()) {
    const at::Tensor own = sum(alone(c, mass, 2));
    for (const int64_t place : places()) {
      const at::Tensor with = sum(batch_of(c, place, mass, 2));
      EXPECT_LE((with - without - own).norm().item<double>(), bound()) << "mass " << mass << " at " << place;
    }
  }
}

// The unit's lookups take away what its head adds.
TEST_P(SharedRounding, OfTwoUsesOfATableThatCancelStaysBelowTheBound) {
  const auto sum = [&](const Batch& batch, int64_t place, double mass) {
    const Segments& s = batch.segments;
    at::Tensor h = batch.a.to(at::kFloat), b = batch.g.to(at::kFloat), e = at::zeros({s.rows(), kInputs});
    if (mass > 0) {
      const int64_t first = s.begin(place);
      b[first + 1].zero_();
      e[first].copy_(h[first] * -b[first][0]);
    }
    const at::Tensor ids = there(at::zeros({s.rows()}, at::kLong));
    h = there(h), b = there(b), e = there(e);
    NormParts parts = backend::zero_parts(s.units());
    embedding_norm(ids, e, s, kOutputs, parts);
    gram_norm(h, b, s, parts);
    tied_pair_cross_term(ids, e, s, h, b, s, parts);
    const at::Tensor out = there(at::zeros({kOutputs, kInputs})), factors = factors_of(parts);
    scaled_sum_rows(h, b, s, factors, out, &parts);
    embedding_scaled_sum(ids, e, s, factors, out);
    return out.cpu().to(at::kDouble);
  };
  const at::Tensor without = sum(batch_of(c, 0, 0, 0), 0, 0);
  for (const double mass : masses()) {
    const at::Tensor own = sum(alone(c, mass, 0), 0, mass);
    for (const int64_t place : places()) {
      const at::Tensor with = sum(batch_of(c, place, mass, 0), place, mass);
      EXPECT_LE((with - without - own).norm().item<double>(), bound()) << "mass " << mass << " at " << place;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, SharedRounding,
                         testing::Values(Others{"OneRowEach", 400, 1, 0.05}, Others{"OneRowOfTheClipNorm", 400, 1, 1},
                                         Others{"FourRowsEach", 100, 4, 0.05}, Others{"SixtyRowsEach", 8, 60, 0.7},
                                         Others{"LongUnits", 3, 300, 0.7},
                                         Others{"SixteenBits", 400, 1, 0.0625, at::kBFloat16}),
                         case_name);

// Partial sums of such rows overflow in float32 though the gradient is 0.
TEST(SharedRoundingOverflow, RowsThatOverflowAndCancelContributeNothing) {
  const Others others{"", 3, 2, 0.5};
  for (const double mass : {0x1p127, 0x1p130, 0x1p200}) {
    const at::Tensor without = matrix_sum(batch_of(others, 1, 0, 0), gram_norm, true);
    for (const Norm norm : {Norm{gram_norm}, Norm{passing_norm}}) {
      const at::Tensor with = matrix_sum(batch_of(others, 1, mass, 1), norm, true);
      EXPECT_TRUE(with.equal(without)) << "mass " << mass << ": " << with[0][0].item<double>();
    }
  }
}

TEST(SharedRoundingOverflow, AMassThatMayOverflowHasNoBound) {
  for (const double mass : {0x1p125, 0x1p126, 0x1p1000}) {
    NormParts parts = backend::zero_parts(1);
    parts.mass.fill_(mass);
    EXPECT_EQ(std::isfinite(oracle::at_unit(norm_upper_bound_sq(parts), 0)), mass < 0x1p126) << mass;
  }
}

// A batch of ordinary texts takes the quick way: no unit is summed by itself, and no factor changes.
TEST(SharedRoundingOrdinary, RowsShareTheirProductsAndKeepTheirNorms) {
  const Segments segments = oracle::segments_of({100, 3, 60, 200, 31});
  for (const oracle::Tokens tokens : {oracle::Tokens::kIndependent, oracle::Tokens::kSharedDirection}) {
    const oracle::Rows rows = oracle::rows_like(tokens, segments.rows(), 64, 48);
    NormParts parts = backend::zero_parts(segments.units());
    gram_norm(there(rows.a), there(rows.g), segments, parts);
    const at::Tensor norms = norm_upper_bound_sq(parts).sqrt();
    EXPECT_TRUE(parts.mass.le(norms * kSharedMass).all().item<bool>()) << parts.mass / norms;

    const at::Tensor ids = there(at::arange(segments.rows()).remainder(48));
    const at::Tensor e = there(oracle::normal({segments.rows(), 64}, 9));
    embedding_norm(ids, e, segments, 48, parts);
    NormParts tied = parts;
    tied.value = parts.value.clone();
    tied.value_error = parts.value_error.clone();
    tied_pair_cross_term(ids, e, segments, there(rows.a), there(rows.g), segments, tied);
    EXPECT_TRUE(tied.value_error.le(1e-3 * tied.value).all().item<bool>()) << "a norm counts for more than itself";
  }
}

}  // namespace
}  // namespace ghostshard::kernels
