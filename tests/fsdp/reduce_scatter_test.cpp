#include "fsdp/reduce_scatter.h"

#include "fsdp/sharded_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_ranks;

std::vector<BlockSpec> some_blocks() {
  return {{"a", {{"a.w", {5, 7}}, {"a.f", {3}, false}}},
          {"b", {{"b.w", {101}}}},
          {"c", {{"c.f", {4}, false}}},
          {"d", {{"d.w", {17, 3}}, {"d.b", {2}}}},
          {"e", {{"e.w", {1}}}}};
}

// Values whose float32 sum depends on the order of the ranks.
at::Tensor message_of(const FlatGroup& group, int64_t rank) {
  const at::Tensor index = at::arange(group.plan().flat_size(), at::kFloat);
  return (index * 0.37F + static_cast<double>(group.index())).sin() * std::pow(10.0F, static_cast<float>(3 - 2 * rank));
}

class ReduceScatters : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ranks, ReduceScatters, testing::Values(1, 2, 3, 4));

TEST_P(ReduceScatters, add_to_the_owners_values_in_rank_order) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    GradientBuffers gradients(model);
    ShardBuffers own(model);
    ReduceScatter reduce(model);
    std::vector<const FlatGroup*> groups;
    for (const auto& group : model.groups()) {
      if (group->trainable()) groups.push_back(group.get());
    }
    for (int round = 0; round < 2; ++round) {
      gradients.zero();
      for (const FlatGroup* group : groups) {
        gradients.flat(*group).copy_(message_of(*group, mesh.rank()));
        own.shard(*group).fill_(0.125 + static_cast<double>(group->index()));
      }
      const int64_t sent = mesh.reduce().bytes_sent();
      int64_t expected_bytes = 0;
      for (size_t i = 0; i < groups.size() + 1; ++i) {  // two in flight
        if (i < groups.size()) reduce.begin(*groups[i], gradients.flat(*groups[i]));
        if (i > 0) reduce.finish(*groups[i - 1], own.shard(*groups[i - 1]));
      }
      for (const FlatGroup* group : groups) {
        const int64_t size = group->plan().shard_size();
        at::Tensor expected = at::full({size}, 0.125 + static_cast<double>(group->index()));
        for (int64_t r = 0; r < mesh.world_size(); ++r) {
          expected += message_of(*group, r).narrow(0, mesh.rank() * size, size);
        }
        EXPECT_TRUE(at::equal(own.shard(*group), expected)) << "group " << group->index() << ", round " << round;
        expected_bytes += 4 * size * (mesh.world_size() - 1);
      }
      EXPECT_EQ(mesh.reduce().bytes_sent() - sent, expected_bytes) << "one size of the buffer less the own slice";
    }
  });
}

class ReplicatedReduceScatters : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, ReplicatedReduceScatters, testing::Values("2x1x1", "2x2x1", "4x1x1", "3x2x1", "2x2x2"),
                         [](const auto& test) { return "mesh_" + std::string(test.param); });

TEST_P(ReplicatedReduceScatters, count_starting_values_once_and_end_with_the_same_bits) {
  tests::run_mesh(MeshShape::parse(GetParam()), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    GradientBuffers gradients(model);
    ShardBuffers own(model);
    ReduceScatter reduce(model);
    const MeshShape& s = mesh.shape();
    for (const auto& group : model.groups()) {
      if (!group->trainable()) continue;
      const int64_t size = group->plan().shard_size();
      const int64_t sent = mesh.replicate().bytes_sent();
      gradients.flat(*group).copy_(message_of(*group, mesh.data_rank()));
      // The starting values of other replicas must not matter, even if they are not finite.
      own.shard(*group).fill_(mesh.replica() == 0 ? 0.125 : std::numeric_limits<double>::quiet_NaN());
      reduce.begin(*group, gradients.flat(*group));
      reduce.finish(*group, own.shard(*group));
      // The order that the header promises: within each replica by shard rank, then by replicas, 0 with its start.
      at::Tensor expected;
      for (int64_t replica = 0; replica < s.replicate; ++replica) {
        at::Tensor of_replica = at::full({size}, replica == 0 ? 0.125 : 0.0);
        for (int64_t r = 0; r < s.shard; ++r) {
          of_replica += message_of(*group, replica * s.shard + r).narrow(0, mesh.shard_rank() * size, size);
        }
        expected = replica == 0 ? of_replica : expected + of_replica;
      }
      EXPECT_TRUE(at::equal(own.shard(*group), expected)) << "group " << group->index();
      const int64_t piece = (size + s.replicate - 1) / s.replicate;
      EXPECT_EQ(mesh.replicate().bytes_sent() - sent, 2 * 4 * piece * (s.replicate - 1)) << "twice the slice less own";
    }
  });
}

TEST(ReduceScatter, refuses_what_would_mix_up_groups) {
  run_ranks(2, [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    const GradientBuffers gradients(model);
    const ShardBuffers own(model);
    ReduceScatter reduce(model);
    const FlatGroup &a = *model.groups()[0], &frozen = *model.groups()[1], &b = *model.groups()[2];
    EXPECT_THROW(reduce.finish(a, own.shard(a)), std::logic_error) << "nothing began";
    EXPECT_THROW(reduce.begin(frozen, at::zeros({frozen.plan().flat_size()})), std::invalid_argument);
    EXPECT_THROW(reduce.begin(a, gradients.flat(b)), std::invalid_argument) << "another group's size";
    reduce.begin(a, gradients.flat(a));
    reduce.begin(b, gradients.flat(b));
    EXPECT_THROW(reduce.begin(a, gradients.flat(a)), std::logic_error) << "a third in flight";
    EXPECT_THROW(reduce.finish(b, own.shard(b)), std::logic_error) << "out of order";
    reduce.finish(a, own.shard(a));
    reduce.finish(b, own.shard(b));
  });
}

TEST(ReduceScatter, buffers_know_their_groups) {
  const auto mesh = Mesh::single();
  const ShardedModel model(*mesh, some_blocks());
  GradientBuffers gradients(model);
  ShardBuffers own(model);
  EXPECT_THROW(gradients.flat(*model.groups()[1]), std::invalid_argument);
  EXPECT_THROW(own.shard(*model.groups()[1]), std::invalid_argument);
  const Parameter& d = model.parameter("d.b");
  gradients.view(d).fill_(3);
  EXPECT_EQ(gradients.view(d).sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(gradients.flat(d.group()).sum().item<float>(), 6);
  EXPECT_EQ(gradients.flat(d.group()).narrow(0, d.offset(), 2).sum().item<float>(), 6);
  gradients.zero();
  EXPECT_EQ(gradients.flat(d.group()).abs().sum().item<float>(), 0);
}

TEST(ReduceScatter, streamed_groups_have_a_buffer_only_while_they_are_open) {
  const auto mesh = Mesh::single();
  const ShardedModel model(*mesh, some_blocks());
  const FlatGroup &a = *model.groups()[0], &b = *model.groups()[2];
  GradientBuffers gradients(model, {true, false, false});
  EXPECT_THROW(gradients.flat(a), std::invalid_argument) << "closed";
  EXPECT_THROW(gradients.open_streamed(b), std::logic_error) << "stands whole";
  at::Tensor message = gradients.open_streamed(a);
  gradients.flat(a).fill_(1);
  EXPECT_EQ(message.sum().item<float>(), static_cast<float>(a.plan().buffer_size())) << "the same memory";
  EXPECT_TRUE(gradients.open_streamed(a).is_same(message)) << "open already";
  gradients.close_streamed(a);
  EXPECT_THROW(gradients.flat(a), std::invalid_argument) << "closed again";
  EXPECT_EQ(message.use_count(), 1) << "nobody else keeps the memory";
  EXPECT_EQ(gradients.open_streamed(a).abs().sum().item<float>(), 0) << "opened again it begins with zeros";
}

}  // namespace
}  // namespace ghostshard::fsdp
