// Ids that a table does not have. The host does not wait for a device to find them: the unit gets an infinite norm, so
// its factor is 0, its row is added to nothing, and every other unit has the values that it would have without them.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/embedding_norm.h"
#include "kernels/linear_norm.h"
#include "kernels/tied_pair.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace ghostshard::kernels {
namespace {

using backend::there;
using backend::zero_parts;
using oracle::at_unit;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kTable = 7, kWidth = 5;

class IdOutOfRange : public testing::TestWithParam<int64_t> {
 protected:
  const Segments segments = oracle::segments_of({3, 2, 2});
  const at::Tensor e = at::arange(7 * kWidth, at::kFloat).view({7, kWidth}) + 1;
  // The second unit has the bad id. Its neighbours have the first and the last id of the table.
  const at::Tensor bad = at::tensor(std::vector<int64_t>{6, 0, 6, 3, GetParam(), 0, 2}, at::kLong);
  const at::Tensor good = at::tensor(std::vector<int64_t>{6, 0, 6, 3, 3, 0, 2}, at::kLong);

  void expect_only_the_second_unbounded(const NormParts& found, const NormParts& otherwise) const {
    const at::Tensor bounds = norm_upper_bound_sq(found), expected = norm_upper_bound_sq(otherwise);
    EXPECT_EQ(at_unit(bounds, 1), kInf);
    for (const int64_t u : {0, 2}) EXPECT_EQ(at_unit(bounds, u), at_unit(expected, u)) << "unit " << u;
  }
};
INSTANTIATE_TEST_SUITE_P(, IdOutOfRange,
                         testing::Values(-1, 7, 8, 14, std::numeric_limits<int64_t>::min(),
                                         std::numeric_limits<int64_t>::max()));

TEST_P(IdOutOfRange, MakesTheNormOfItsUnitInfinite) {
  NormParts found = zero_parts(3), otherwise = zero_parts(3);
  embedding_norm(there(bad), there(e), segments, kTable, found);
  embedding_norm(there(good), there(e), segments, kTable, otherwise);
  expect_only_the_second_unbounded(found, otherwise);
}

TEST_P(IdOutOfRange, IsAddedToNothing) {
  at::Tensor sum = there(at::zeros({kTable, kWidth}));
  embedding_scaled_sum(there(bad), there(e), segments, there(at::ones({3})), sum);
  at::Tensor expected = at::zeros({kTable, kWidth});
  for (const int64_t s : {0, 1, 2, 3, 5, 6}) expected[good[s].item<int64_t>()] += e[s];
  EXPECT_TRUE(at::equal(sum.cpu(), expected));
}

TEST_P(IdOutOfRange, LeavesWhatIsHeldOfOtherUnits) {
  NormParts found = zero_parts(3), otherwise = zero_parts(3);
  const at::Tensor held = there(at::zeros({3, kTable, kWidth})), expected = there(at::zeros({3, kTable, kWidth}));
  embedding_into_held(there(bad), there(e), segments, held, found);
  embedding_into_held(there(good), there(e), segments, expected, otherwise);
  expect_only_the_second_unbounded(found, otherwise);
  for (const int64_t u : {0, 2}) EXPECT_TRUE(at::equal(held[u].cpu(), expected[u].cpu())) << "unit " << u;
}

TEST_P(IdOutOfRange, MeetsNothingOfTheHead) {
  const at::Tensor h = there(at::ones({7, kWidth})), b = there(at::rand({7, kTable}));
  NormParts found = zero_parts(3), otherwise = zero_parts(3);
  for (const auto& [ids, parts] : {std::pair{bad, &found}, {good, &otherwise}}) {
    embedding_norm(there(ids), there(e), segments, kTable, *parts);
    gram_norm(h, b, segments, *parts);
    tied_pair_cross_term(there(ids), there(e), segments, h, b, segments, *parts);
  }
  expect_only_the_second_unbounded(found, otherwise);
  NormParts alone = zero_parts(3);
  tied_pair_cross_term(there(bad), there(e), segments, h, b, segments, alone);
  EXPECT_EQ(at_unit(norm_upper_bound_sq(alone), 1), kInf) << "also without the lookups' own norm";
}

}  // namespace
}  // namespace ghostshard::kernels
