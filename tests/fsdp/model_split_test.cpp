#include "fsdp/model_split.h"

#include <gtest/gtest.h>

#include "fsdp/sharded_model.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {

struct SplitCase {
  std::string name;
  std::vector<int64_t> whole;
  ModelSplit split;
  int64_t ranks;
  std::vector<int64_t> part;
};

class Splits : public testing::TestWithParam<SplitCase> {};
INSTANTIATE_TEST_SUITE_P(
    , Splits,
    testing::Values(SplitCase{"none", {3, 5}, {}, 4, {3, 5}}, SplitCase{"one_rank", {3, 5}, {.extent = 1}, 1, {3, 5}},
                    SplitCase{"rows", {6, 5}, {.extent = 0}, 3, {2, 5}},
                    SplitCase{"columns", {3, 8}, {.extent = 1}, 4, {3, 2}},
                    SplitCase{"columns_in_three_sections", {5, 12}, {.extent = 1, .sections = 3}, 2, {5, 6}},
                    SplitCase{"vector_in_three_sections", {12}, {.extent = 0, .sections = 3}, 4, {3}},
                    SplitCase{"middle_extent", {2, 6, 5}, {.extent = 1, .sections = 1}, 3, {2, 2, 5}}),
    [](const auto& test) { return test.param.name; });

TEST_P(Splits, give_parts_of_one_shape_that_join_to_the_whole) {
  const SplitCase& c = GetParam();
  EXPECT_EQ(part_shape("w", c.whole, c.split, c.ranks), c.part);
  const at::Tensor whole = at::arange(c10::multiply_integers(c.whole), at::kFloat).view(c.whole);
  if (!c.split.cuts()) return;
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    parts.push_back(part_of(whole, c.split, c.ranks, rank));
    EXPECT_EQ(parts.back().sizes(), at::IntArrayRef(c.part));
    // The slow twin: section by section with torch's own slicing.
    std::vector<at::Tensor> sections;
    for (const at::Tensor& section : whole.chunk(c.split.sections, c.split.extent)) {
      sections.push_back(section.chunk(c.ranks, c.split.extent)[static_cast<size_t>(rank)]);
    }
    EXPECT_TRUE(at::equal(parts.back(), at::cat(sections, c.split.extent)));
    parts.back() = parts.back().reshape(-1);
  }
  EXPECT_TRUE(at::equal(join_parts(at::cat(parts), c.whole, c.split, c.ranks), whole));
}

TEST_P(Splits, runs_say_where_every_element_of_a_range_lies) {
  const SplitCase& c = GetParam();
  const at::Tensor whole = at::arange(c10::multiply_integers(c.whole), at::kFloat).view(c.whole);
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    const at::Tensor part = part_of(whole, c.split, c.ranks, rank).reshape(-1);  // values are whole indices
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, part.numel()}, {1, part.numel() - 2}, {2, 0}}) {
      int64_t next = first;
      for (const ElementRun& run : whole_runs(c.whole, c.split, c.ranks, rank, first, count)) {
        EXPECT_EQ(run.first, next);
        for (int64_t i = 0; i < run.count; ++i) {
          EXPECT_EQ(part[run.first + i].item<float>(), static_cast<float>(run.whole_first + i));
        }
        next += run.count;
      }
      EXPECT_EQ(next, first + count);
    }
  }
}

TEST(Split, that_does_not_come_out_even_is_refused_by_name) {
  for (const auto& [split, ranks] :
       {std::pair<ModelSplit, int64_t>{{.extent = 1, .sections = 3}, 5}, {{.extent = 0}, 2}, {{.extent = 2}, 2}}) {
    try {
      part_shape("qkv", {3, 12}, split, ranks);
      FAIL() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).rfind("parameter 'qkv': ", 0), 0U) << error.what();
    }
  }
}

class SplitModels : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, SplitModels, testing::Values("1x1x1", "1x1x2", "1x2x2", "2x1x2", "2x2x2", "1x2x4"),
                         [](const auto& test) { return "mesh_" + std::string(test.param); });

TEST_P(SplitModels, take_and_give_back_whole_parameters) {
  tests::run_mesh(MeshShape::parse(GetParam()), [](Mesh& mesh) {
    ShardedModel model(mesh, {{"a", {{"columns", {5, 24}, true, {.extent = 1, .sections = 3}}, {"whole", {7}}}},
                              {"b", {{"rows", {8, 3}, false, {.extent = 0}}}}});
    EXPECT_EQ(model.parameter_count(), 5 * 24 + 7 + 24);
    EXPECT_EQ(model.trainable_parameter_count(), 5 * 24 + 7);
    for (const auto& parameter : model.parameters()) {
      const at::Tensor content = (at::arange(parameter->whole_numel(), at::kFloat) + 1000 * (1 + parameter->id()))
                                     .view(parameter->whole_shape());
      model.set_parameter(*parameter, content);
      EXPECT_TRUE(at::equal(model.whole_parameter(*parameter), content)) << parameter->name();
      const Lease lease(model, parameter->block());
      EXPECT_EQ(parameter->value().sizes(), at::IntArrayRef(parameter->shape()));
      EXPECT_EQ(parameter->cut(), mesh.shape().model > 1 && parameter->name() != "whole");
    }
  });
}

}  // namespace
}  // namespace ghostshard::fsdp
