#include "fsdp/shard_plan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace ghostshard::fsdp {
namespace {

struct PlanCase {
  std::string name;
  std::vector<TensorSpec> specs;
  int64_t ranks;
  int64_t alignment = 1;
};

// The slow twin: every offset of every tensor, every shard size, by trying.
int64_t smallest_size_by_trying(const PlanCase& plan) {
  int64_t total = 0;
  for (const TensorSpec& spec : plan.specs) total += spec.numel();
  for (int64_t size = plan.alignment;; size += plan.alignment) {
    int64_t end = 0;
    bool all = true;
    for (const TensorSpec& spec : plan.specs) {
      const int64_t n = spec.numel();
      int64_t offset = end;
      bool placed = false;
      for (; !placed && offset + n <= size * plan.ranks; ++offset) {
        placed = true;
        for (int64_t boundary = size; boundary < size * plan.ranks; boundary += size) {
          if (boundary > offset && boundary < offset + n && (boundary - offset) % spec.granule != 0) placed = false;
        }
      }
      if (!placed) {
        all = false;
        break;
      }
      end = offset - 1 + n;
    }
    if (all && end <= size * plan.ranks) return size;
  }
}

// Checks all promises of a plan, element by element.
void expect_sound(const ShardPlan& plan, int64_t alignment) {
  EXPECT_EQ(plan.shard_size() % alignment, 0);
  const auto tensors = static_cast<int64_t>(plan.specs().size());
  std::vector<std::vector<int>> times(plan.specs().size());
  for (int64_t t = 0; t < tensors; ++t)
    times[static_cast<size_t>(t)].resize(plan.specs()[static_cast<size_t>(t)].numel());
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    int64_t end = 0;
    for (const OwnedRange& range : plan.owned(rank)) {
      const TensorSpec& spec = plan.specs()[static_cast<size_t>(range.tensor)];
      EXPECT_GT(range.count, 0);
      EXPECT_GE(range.shard_offset, end) << "ranges overlap or are out of order";
      end = range.shard_offset + range.count;
      EXPECT_LE(end, plan.shard_size());
      EXPECT_EQ(plan.offset(range.tensor) + range.first, rank * plan.shard_size() + range.shard_offset);
      EXPECT_EQ(range.first % spec.granule, 0) << spec.name << ": a granule is cut at its start";
      if (range.first + range.count < spec.numel()) {
        EXPECT_EQ((range.first + range.count) % spec.granule, 0) << spec.name << ": a granule is cut at its end";
      }
      for (int64_t i = range.first; i < range.first + range.count; ++i) {
        ++times[static_cast<size_t>(range.tensor)].at(static_cast<size_t>(i));
      }
    }
  }
  int64_t elements = 0;
  for (const auto& tensor : times) {
    elements += static_cast<int64_t>(tensor.size());
    EXPECT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](int n) { return n == 1; }));
  }
  EXPECT_EQ(plan.padding(), plan.flat_size() - elements);
}

class ShardPlans : public testing::TestWithParam<PlanCase> {};

INSTANTIATE_TEST_SUITE_P(
    , ShardPlans,
    testing::Values(PlanCase{"nothing_at_all", {}, 3},
                    PlanCase{"a_tensor_without_elements", {{"a", {0, 4}, 1}, {"b", {5}, 1}}, 2},
                    PlanCase{"elements", {{"a", {7}, 1}, {"b", {6}, 1}}, 4},
                    PlanCase{"rows_that_divide", {{"a", {8, 3}, 3}, {"b", {4}, 1}}, 4},
                    PlanCase{"rows_over_three_shards_force_a_multiple", {{"a", {9, 5}, 5}, {"b", {3}, 1}}, 4},
                    PlanCase{"two_row_lengths", {{"a", {5, 6}, 6}, {"b", {5, 4}, 4}, {"c", {6}, 1}}, 3},
                    PlanCase{"whole_tensors", {{"a", {9}, 9}, {"b", {7}, 7}, {"c", {5}, 5}, {"d", {3}, 3}}, 3},
                    PlanCase{"more_ranks_than_elements", {{"a", {3}, 1}}, 8},
                    PlanCase{"one_rank", {{"a", {6, 5}, 5}, {"b", {5}, 5}}, 1},
                    PlanCase{"a_short_last_granule", {{"a", {23}, 4}, {"b", {10, 3}, 12}}, 3},
                    PlanCase{"a_short_last_granule_over_many_shards", {{"a", {2}, 1}, {"b", {61}, 5}}, 7},
                    PlanCase{"a_granule_longer_than_its_tensor", {{"a", {3}, 8}, {"b", {2}, 8}, {"c", {9}, 1}}, 4},
                    PlanCase{"aligned", {{"a", {10, 3}, 3}, {"b", {3}, 1}}, 3, 8}),
    [](const auto& test) { return test.param.name; });

TEST_P(ShardPlans, are_sound_and_smallest) {
  const PlanCase& param = GetParam();
  const ShardPlan plan = ShardPlan::make(param.specs, param.ranks, param.alignment);
  expect_sound(plan, param.alignment);
  EXPECT_EQ(plan.shard_size(), smallest_size_by_trying(param));
}

class RandomShardPlans : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, RandomShardPlans, testing::Range(0, 12));

TEST_P(RandomShardPlans, are_sound_and_smallest) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1; };
  for (int repeat = 0; repeat < 60; ++repeat) {
    PlanCase plan{.name = "", .specs = {}, .ranks = upto(6), .alignment = upto(4)};
    const int64_t count = upto(6);
    for (int64_t t = 0; t < count; ++t) {
      const int64_t granule = upto(7), granules = upto(9), short_by = upto(2) == 1 ? upto(granule) - 1 : 0;
      plan.specs.push_back(
          {std::string("t").append(std::to_string(t)), {granules * granule - short_by}, upto(3) == 1 ? 1 : granule});
    }
    const ShardPlan made = ShardPlan::make(plan.specs, plan.ranks, plan.alignment);
    expect_sound(made, plan.alignment);
    ASSERT_EQ(made.shard_size(), smallest_size_by_trying(plan)) << "seed " << GetParam() << ", repeat " << repeat;
  }
}

TEST(ShardPlan, of_a_gpt2_block_by_rows_wastes_little) {
  const int64_t d = 768;
  const std::vector<TensorSpec> block = {{"ln_1.weight", {d}, 1},
                                         {"ln_1.bias", {d}, 1},
                                         {"attn.weight", {d, 3 * d}, 3 * d},
                                         {"attn.bias", {3 * d}, 1},
                                         {"proj.weight", {d, d}, d},
                                         {"proj.bias", {d}, 1},
                                         {"ln_2.weight", {d}, 1},
                                         {"ln_2.bias", {d}, 1},
                                         {"fc.weight", {d, 4 * d}, 4 * d},
                                         {"fc.bias", {4 * d}, 1},
                                         {"fc_proj.weight", {4 * d, d}, d},
                                         {"fc_proj.bias", {d}, 1}};
  // (On 64 ranks the three row lengths force shards of a multiple of 9216 elements and 8 % of padding.)
  for (const int64_t ranks : {2, 3, 4, 8}) {
    const ShardPlan plan = ShardPlan::make(block, ranks);
    expect_sound(plan, 16);
    EXPECT_LT(static_cast<double>(plan.padding()), 0.03 * static_cast<double>(plan.flat_size())) << ranks << " ranks";
  }
}

struct WrongPlan {
  std::string name;
  TensorSpec spec;
  int64_t ranks, alignment;
  std::string found;
};
class WrongPlans : public testing::TestWithParam<WrongPlan> {};
INSTANTIATE_TEST_SUITE_P(, WrongPlans,
                         testing::Values(WrongPlan{"granule_of_nothing", {"w", {3}, 0}, 2, 16, "got 0"},
                                         WrongPlan{"negative_extent", {"w", {-3}, 1}, 2, 16, "got -3"},
                                         WrongPlan{"no_ranks", {"w", {3}, 1}, 0, 16, "got 0"},
                                         WrongPlan{"no_alignment", {"w", {3}, 1}, 2, 0, "got 0"}),
                         [](const auto& test) { return test.param.name; });

TEST_P(WrongPlans, are_refused_with_the_value) {
  try {
    ShardPlan::make({GetParam().spec}, GetParam().ranks, GetParam().alignment);
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().found), std::string::npos) << error.what();
  }
}

TEST(ShardPlan, owned_of_a_rank_that_is_not_there_is_refused) {
  const ShardPlan plan = ShardPlan::make({{"w", {3}, 1}}, 2);
  EXPECT_THROW(plan.owned(2), std::invalid_argument);
  EXPECT_THROW(plan.owned(-1), std::invalid_argument);
}

// The layout of PyTorch's fully_shard, which is defined by torch.chunk.
struct RowsCase {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  int64_t ranks;
};

class PlansByRows : public testing::TestWithParam<RowsCase> {};
INSTANTIATE_TEST_SUITE_P(, PlansByRows,
                         testing::Values(RowsCase{"one_rank", {{5, 3}, {7}}, 1}, RowsCase{"even", {{8, 3}, {4}}, 4},
                                         RowsCase{"uneven", {{7, 3}, {5}, {9, 2, 2}}, 4},
                                         RowsCase{"fewer_rows_than_ranks", {{2, 3}, {1}, {3}}, 4},
                                         RowsCase{"ends_with_empty_ranks", {{9, 2}, {5}}, 8}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(PlansByRows, give_every_rank_what_torch_chunk_does) {
  std::vector<TensorSpec> specs;
  for (const auto& shape : GetParam().shapes) {
    specs.push_back({.name = "t" + std::to_string(specs.size()), .shape = shape});
  }
  const ShardPlan plan = ShardPlan::by_rows(specs, GetParam().ranks);
  EXPECT_EQ(plan.slices_of_buffer(), GetParam().ranks == 1);
  int64_t most = 0;
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    int64_t end = 0;
    std::vector<at::Tensor> owned(specs.size());
    for (const OwnedRange& range : plan.owned(rank)) {
      if (GetParam().ranks > 1) {
        EXPECT_EQ(range.shard_offset, end) << "a gap";
      }
      end = range.shard_offset + range.count;
      owned[static_cast<size_t>(range.tensor)] = at::arange(range.first, range.first + range.count);
    }
    most = std::max(most, end);
    for (size_t t = 0; t < specs.size(); ++t) {
      const auto chunks = at::arange(specs[t].numel()).view(specs[t].shape).chunk(GetParam().ranks);
      const bool any = rank < static_cast<int64_t>(chunks.size());
      ASSERT_EQ(owned[t].defined(), any) << "tensor " << t << ", rank " << rank;
      if (any) {
        EXPECT_TRUE(at::equal(owned[t], chunks[static_cast<size_t>(rank)].flatten())) << t << " on " << rank;
      }
    }
  }
  EXPECT_GE(plan.shard_size(), most);
  if (GetParam().ranks > 1) {
    EXPECT_EQ(plan.shard_size(), most);
  }
  int64_t end = 0;
  for (size_t t = 0; t < specs.size(); ++t) {
    EXPECT_GE(plan.offset(static_cast<int64_t>(t)), end) << "tensors overlap in the buffer";
    end = plan.offset(static_cast<int64_t>(t)) + specs[t].numel();
  }
  EXPECT_GE(plan.buffer_size(), end);
}

}  // namespace
}  // namespace ghostshard::fsdp
