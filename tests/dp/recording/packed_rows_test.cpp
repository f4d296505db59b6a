#include "dp/recording/packed_rows.h"

#include <gtest/gtest.h>

#include "dp/run/session.h"
#include "fsdp/mesh.h"

namespace ghostshard::dp {
namespace {

std::vector<int64_t> offsets_of(const std::optional<PackedRows::Use>& use) {
  return use ? use->segments->offsets() : std::vector<int64_t>{};
}

struct RowsCase {
  const char* name;
  std::vector<int64_t> leading;  // extents before a row's own
  std::vector<int64_t> offsets;  // nothing: refused
};

class RowsOfPackedTexts : public testing::TestWithParam<RowsCase> {};
INSTANTIATE_TEST_SUITE_P(, RowsOfPackedTexts,
                         testing::Values(RowsCase{"as_the_tokens", {2, 3}, {0, 1, 4, 6}},  //
                                         RowsCase{"flattened", {6}, {0, 1, 4, 6}},
                                         RowsCase{"one_batch_row", {1, 6}, {0, 1, 4, 6}},
                                         RowsCase{"heads_of_each_token", {2, 3, 4}, {0, 4, 16, 24}},
                                         RowsCase{"heads_flattened", {6, 2}, {0, 2, 8, 12}},
                                         RowsCase{"one_for_each_unit", {3}, {0, 1, 2, 3}},
                                         RowsCase{"two_for_each_unit", {3, 2}, {0, 2, 4, 6}},
                                         RowsCase{"time_first", {4, 2}, {}}, RowsCase{"fewer", {5}, {}},
                                         RowsCase{"heads_before_time", {2, 4, 3}, {}}, RowsCase{"a_batch_row", {2}, {}},
                                         RowsCase{"none", {}, {}}),
                         [](const auto& test) { return test.param.name; });

TEST_P(RowsOfPackedTexts, are_known_by_the_extents_of_an_input) {
  const PackedRows rows({2, 3}, {0, 1, 4, 6}, {}, true);
  EXPECT_EQ(offsets_of(rows.use(GetParam().leading, nullptr)), GetParam().offsets);
}

TEST(PackedRows, of_users_have_no_row_for_each_unit) {
  const PackedRows rows({6}, {0, 4, 6}, at::tensor({0, 2, 3, 5, 1, 4}, at::kLong), false);
  EXPECT_FALSE(rows.use({2}, nullptr).has_value());
  EXPECT_EQ(offsets_of(rows.use({6}, nullptr)), (std::vector<int64_t>{0, 4, 6}));
}

TEST(PackedRows, refuse_what_does_not_fit) {
  EXPECT_THROW(PackedRows({2, 3}, {0, 5}, {}, true), std::exception) << "rows that are nobody's";
  EXPECT_THROW(PackedRows({1, 2, 3}, {0, 6}, {}, true), std::exception) << "three extents";
  EXPECT_THROW(PackedRows({3}, {0, 3}, at::tensor({0, 1, 1}, at::kLong), true), std::exception) << "a row twice";
  EXPECT_THROW(PackedRows({3}, {0, 3}, at::tensor({0, 1}, at::kLong), true), std::exception) << "a row missing";
  EXPECT_THROW(PackedRows({3}, {0, 2, 1, 3}, {}, true), std::exception) << "offsets that decrease";
}

TEST(PackedRows, look_position_ids_up_for_every_batch_row) {
  const PackedRows rows({2, 3}, {0, 6}, {}, true);
  EXPECT_EQ(rows.for_all_rows(at::arange(3).unsqueeze(0)).sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(rows.for_all_rows(at::zeros({1, 6}, at::kLong)).sizes(), at::IntArrayRef({1, 6}));
}

// Embedding, normalisation, a use of one matrix and a transposed head, over any rows: the release is the sum of each
// unit's clipped gradients.
constexpr int64_t kWords = 7, kWidth = 4;

std::vector<at::Tensor> released(const std::vector<int64_t>& ids, const std::shared_ptr<const PackedRows>& rows,
                                 const std::vector<std::vector<int64_t>>& alone) {
  Session session(
      fsdp::Mesh::single(),
      {{"all", {{"table", {kWords, kWidth}}, {"scale", {kWidth}}, {"shift", {kWidth}}, {"head", {kWidth, 3}}}}}, {},
      RunKey::from_bytes({5}, RunId{}));
  session.set_terms(accountant::ClipNorm(0.5), std::nullopt);
  std::vector<at::Tensor> w{at::arange(kWords * kWidth, at::kFloat).sin().view({kWords, kWidth}),
                            at::arange(kWidth, at::kFloat).cos(), at::ones({kWidth}) * 0.1F,
                            at::arange(kWidth * 3, at::kFloat).cos().view({kWidth, 3})};
  const auto backward = [&](const at::Tensor& of) {
    at::Tensor x = session.embedding(0, of, w[0], -1);
    x = session.layer_norm(1, 2, x, 1e-5, w[1], w[2]);
    session.linear(3, -1, true, x, w[3], std::nullopt).square().sum().backward();
    session.clip();
  };
  if (rows != nullptr) {
    session.begin_microbatch(rows);
    backward(at::tensor(ids, at::kLong));
  }
  for (const auto& unit : alone) {
    session.begin_microbatch(1);
    std::vector<int64_t> own;
    for (const int64_t row : unit) own.push_back(ids[static_cast<size_t>(row)]);
    backward(at::tensor(own, at::kLong).unsqueeze(0));
  }
  return session.release();
}

TEST(PackedRows, release_what_units_alone_do) {
  const std::vector<int64_t> ids{3, 1, 4, 1, 5, 2, 6, 5};
  const auto together =
      std::make_shared<PackedRows>(std::vector<int64_t>{8}, std::vector<int64_t>{0, 1, 6, 8}, at::Tensor(), true);
  const auto apart = std::make_shared<PackedRows>(std::vector<int64_t>{8}, std::vector<int64_t>{0, 5, 8},
                                                  at::tensor({0, 1, 4, 6, 7, 2, 3, 5}, at::kLong), false);
  const std::vector<std::pair<std::shared_ptr<PackedRows>, std::vector<std::vector<int64_t>>>> cases{
      {together, {{0}, {1, 2, 3, 4, 5}, {6, 7}}}, {apart, {{0, 1, 4, 6, 7}, {2, 3, 5}}}};
  for (const auto& [packed, units] : cases) {
    const auto found = released(ids, packed, {}), expected = released(ids, nullptr, units);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-6)) << "parameter " << i;
    }
  }
}

TEST(PackedRows, are_one_microbatch_only_with_the_same_rows) {
  Session session(fsdp::Mesh::single(), {{"all", {{"table", {kWords, kWidth}}}}}, {}, RunKey::from_bytes({5}, RunId{}));
  const auto rows = [](std::vector<int64_t> offsets) {
    return std::make_shared<PackedRows>(std::vector<int64_t>{4}, std::move(offsets), at::Tensor(), true);
  };
  session.begin_microbatch(rows({0, 1, 4}));
  const auto first = session.tape();
  session.begin_microbatch(rows({0, 1, 4}));
  EXPECT_EQ(session.tape(), first);
  session.begin_microbatch(rows({0, 2, 4}));
  EXPECT_NE(session.tape(), first) << "other rows, as many units";
  const auto second = session.tape();
  session.begin_microbatch(2);
  EXPECT_NE(session.tape(), second) << "not packed, as many units";
}

}  // namespace
}  // namespace ghostshard::dp
