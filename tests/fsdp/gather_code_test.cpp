// Weights that travel in codes: every mesh shows the same values, those of a twin that codes the whole parameter, and
// as many bytes are sent as the code says. The code here is a plain one of the tests' own (kernels have theirs).
#include "fsdp/gather_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {

using tests::run_ranks;

constexpr int64_t kStretch = 8;
constexpr int64_t kLeast = 40;

// Whole numbers up to 127 of a scale, by LibTorch's operations, a stretch at a time.
class PlainCode final : public GatherCode {
 public:
  std::string name() const override { return "plain"; }
  int64_t stretch() const override { return kStretch; }
  int64_t least_elements() const override { return kLeast; }
  void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) const override {
    for (int64_t first = 0, s = 0; first < values.numel(); first += kStretch, ++s) {
      const at::Tensor mine = values.narrow(0, first, std::min(kStretch, values.numel() - first));
      const at::Tensor scale = mine.abs().max() / 127;
      scales[s].copy_(scale);
      codes.narrow(0, first, mine.numel()).copy_(mine.div(scale).round().add(128));
    }
  }
  void decode(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values) const override {
    for (int64_t first = 0, s = 0; first < values.numel(); first += kStretch, ++s) {
      const int64_t count = std::min(kStretch, values.numel() - first);
      values.narrow(0, first, count).copy_(codes.narrow(0, first, count).to(at::kFloat).sub(128).mul(scales[s]));
    }
  }
};
const auto kCode = std::make_shared<const PlainCode>();

// The twin: the whole parameter from its first element on.
at::Tensor as_it_travels(const at::Tensor& whole, at::ScalarType type) {
  if (!kCode->takes(whole.sizes())) return whole.to(type);
  const at::Tensor codes = at::empty({whole.numel()}, at::kByte);
  const at::Tensor scales = at::empty({(whole.numel() + kStretch - 1) / kStretch});
  const at::Tensor values = at::empty({whole.numel()});
  kCode->encode(whole.flatten(), codes, scales);
  kCode->decode(codes, scales, values);
  return values.view(whole.sizes()).to(type);
}

// Rows that stretches do not divide, granules that they do not either, vectors, and parameters too small to be coded.
std::vector<BlockSpec> blocks() {
  return {{"kept", {{"table", {37, 9}}, {"fixed", {50}, false}, {"frozen", {7, 11}, false}}, Residency::kKeep},
          {"one", {{"w1", {11, 24}}, {"b1", {24}}, {"small", {3, 13}}}},
          {"two", {{.name = "w2", .shape = {24, 10}, .granule = Granule::rows(3)}, {"b2", {10}}}},
          {"three", {{.name = "w3", .shape = {8, 25}, .granule = Granule::whole()}}}};
}

void fill(ShardedModel& model, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const auto& parameter : model.parameters()) {
    model.set_parameter(*parameter, at::randn(parameter->shape(), generator));
  }
}

struct Travel {
  int64_t ranks;
  at::ScalarType type;
};
class GatherInCodes : public testing::TestWithParam<Travel> {};
INSTANTIATE_TEST_SUITE_P(, GatherInCodes,
                         testing::Values(Travel{1, at::kFloat}, Travel{2, at::kFloat}, Travel{3, at::kFloat},
                                         Travel{4, at::kFloat}, Travel{8, at::kFloat}, Travel{1, at::kBFloat16},
                                         Travel{3, at::kBFloat16}),
                         [](const auto& test) {
                           return std::string(c10::toString(test.param.type)) + "_on_" +
                                  std::to_string(test.param.ranks);
                         });

TEST_P(GatherInCodes, values_are_those_of_the_whole_parameters_codes) {
  run_ranks(GetParam().ranks, [](Mesh& mesh) {
    const at::ScalarType type = GetParam().type;
    ShardedModel model(mesh, blocks(), type, kCode);
    for (const uint64_t seed : {4, 5}) {  // other weights: what was sent is out of date
      fill(model, seed);
      for (const auto& parameter : model.parameters()) {
        const at::Tensor master = model.whole_parameter(*parameter);
        const Lease lease(model, parameter->block());
        EXPECT_EQ(parameter->value().scalar_type(), type);
        EXPECT_TRUE(at::equal(parameter->value(), as_it_travels(master, type))) << parameter->name();
        EXPECT_EQ(at::equal(parameter->value(), master.to(type)), !kCode->takes(master.sizes())) << parameter->name();
      }
    }
  });
}

TEST_P(GatherInCodes, master_weights_stay_as_they_were_set) {
  run_ranks(GetParam().ranks, [](Mesh& mesh) {
    ShardedModel model(mesh, blocks(), GetParam().type, kCode);
    ShardedModel plain(mesh, blocks());
    fill(model, 6);
    fill(plain, 6);
    for (int64_t u = 0; u < model.block_count(); ++u) const Lease lease(model, u);
    for (const auto& parameter : model.parameters()) {
      EXPECT_TRUE(
          at::equal(model.whole_parameter(*parameter), plain.whole_parameter(plain.parameter(parameter->name()))));
    }
  });
}

TEST_P(GatherInCodes, a_block_that_was_prefetched_and_not_used_leaves_the_next_one_right) {
  run_ranks(GetParam().ranks, [](Mesh& mesh) {
    ShardedModel model(mesh, blocks(), GetParam().type, kCode);
    fill(model, 7);
    model.prefetch(1);
    model.prefetch(3);  // shares its buffer
    const Lease lease(model, 3);
    const Parameter& parameter = model.parameter("w3");
    EXPECT_TRUE(at::equal(parameter.value(), as_it_travels(model.whole_parameter(parameter), GetParam().type)));
  });
}

TEST_P(GatherInCodes, no_shard_boundary_cuts_a_stretch_or_the_parameters_own_granule) {
  run_ranks(GetParam().ranks, [](Mesh& mesh) {
    const ShardedModel model(mesh, blocks(), GetParam().type, kCode);
    for (const auto& group : model.groups()) {
      for (int64_t rank = 0; rank < mesh.shape().shard; ++rank) {
        for (const OwnedRange& range : group->plan().owned(rank)) {
          const Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
          if (kCode->takes(parameter.shape())) {
            EXPECT_EQ(range.first % kStretch, 0) << parameter.name();
          }
          EXPECT_EQ(range.first % parameter.granule().value_or(1), 0) << parameter.name();
        }
      }
    }
  });
}

// Of one rank's message: the longest of what ranks own, in whole lines of 16 bytes.
int64_t message_bytes(const FlatGroup& group, int64_t value_bytes) {
  int64_t longest = 0;
  for (int64_t rank = 0; rank < group.plan().world_size(); ++rank) {
    int64_t bytes = 0;
    for (const OwnedRange& range : group.plan().owned(rank)) {
      const bool coded = kCode->takes(group.parameters()[static_cast<size_t>(range.tensor)]->shape());
      bytes += coded ? kCode->bytes(range.count) : value_bytes * range.count;
    }
    longest = std::max(longest, bytes);
  }
  return (longest + 15) / 16 * 16;
}

TEST_P(GatherInCodes, as_many_bytes_are_sent_as_the_codes_have) {
  run_ranks(GetParam().ranks, [](Mesh& mesh) {
    ShardedModel model(mesh, blocks(), GetParam().type, kCode);
    fill(model, 8);
    int64_t expected = 0;
    for (const auto& group : model.groups()) {
      expected += (mesh.shape().shard - 1) * message_bytes(*group, c10::elementSize(GetParam().type));
    }
    const int64_t before = mesh.gather().bytes_sent();
    for (int64_t u = 0; u < model.block_count(); ++u) const Lease lease(model, u);
    EXPECT_EQ(mesh.gather().bytes_sent() - before, expected);
  });
}

TEST(GatherCodes, on_a_model_axis_are_refused) {
  tests::run_mesh({.model = 2}, [](Mesh& mesh) {
    try {
      const ShardedModel model(mesh, blocks(), at::kFloat, kCode);
      FAIL() << "no exception";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("plain"), testing::HasSubstr("model axis")));
    }
  });
}

}  // namespace
}  // namespace ghostshard::fsdp
