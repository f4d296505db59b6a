#include "fsdp/reduce_pipeline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp/sharded_model.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {

std::vector<BlockSpec> three_blocks() {
  return {{"a", {{"a.w", {5, 7}}}}, {"b", {{"b.w", {101}}}}, {"c", {{"c.w", {17, 3}}}}};
}

at::Tensor message_of(const FlatGroup& group, int64_t rank) {
  return (at::arange(group.plan().flat_size(), at::kFloat) + 10.0 * static_cast<double>(group.index())) *
         std::pow(10.0F, static_cast<float>(2 - rank));
}

class ReducePipelines : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ranks, ReducePipelines, testing::Values(1, 2, 3));

TEST_P(ReducePipelines, add_every_group_to_its_starting_values_one_behind_the_last_pushed) {
  tests::run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, three_blocks());
    ShardBuffers own(model);
    std::string order;
    ReducePipeline pipeline(model, [&](const FlatGroup& group) {
      order += "start " + std::to_string(group.index()) + ", ";
      return own.shard(group).fill_(0.5 + static_cast<double>(group.index()));
    });
    const auto note = [&](const FlatGroup* finished) {
      order += finished == nullptr ? "nothing" : "finished " + std::to_string(finished->index());
      order += "; ";
    };
    EXPECT_TRUE(pipeline.idle());
    for (const auto& group : model.groups()) {
      note(pipeline.push(*group, message_of(*group, mesh.rank())));
      EXPECT_FALSE(pipeline.idle());
    }
    note(pipeline.drain());
    EXPECT_TRUE(pipeline.idle());
    note(pipeline.drain());
    EXPECT_EQ(order, "nothing; start 0, finished 0; start 1, finished 1; start 2, finished 2; nothing; ");
    for (const auto& group : model.groups()) {
      const int64_t size = group->plan().shard_size();
      at::Tensor expected = at::full({size}, 0.5 + static_cast<double>(group->index()));
      for (int64_t r = 0; r < mesh.world_size(); ++r) {
        expected += message_of(*group, r).narrow(0, mesh.rank() * size, size);
      }
      EXPECT_TRUE(at::equal(own.shard(*group), expected)) << "group " << group->index();
    }
  });
}

TEST(ReducePipeline, is_not_idle_after_a_failure_until_it_forgets) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, three_blocks());
  ShardBuffers own(model);
  bool fails = true;
  ReducePipeline pipeline(model, [&](const FlatGroup& group) {
    if (fails) throw std::runtime_error("no starting values");
    return own.shard(group).zero_();
  });
  const FlatGroup &a = *model.groups()[0], &b = *model.groups()[1];
  pipeline.push(a, message_of(a, 0));
  EXPECT_THROW(pipeline.push(b, message_of(b, 0)), std::runtime_error);
  EXPECT_FALSE(pipeline.idle());
  pipeline.forget();
  EXPECT_TRUE(pipeline.idle());
  pipeline.push(a, message_of(a, 0));
  EXPECT_THROW(pipeline.drain(), std::runtime_error);
  EXPECT_FALSE(pipeline.idle());
  pipeline.forget();
  fails = false;
  EXPECT_EQ(pipeline.push(b, message_of(b, 0)), nullptr);
  EXPECT_EQ(pipeline.drain(), &b);
}

TEST(ReducePipeline, does_not_forget_messages_between_ranks) {
  tests::run_ranks(2, [](Mesh& mesh) {
    ShardedModel model(mesh, three_blocks());
    ShardBuffers own(model);
    ReducePipeline pipeline(model, [&](const FlatGroup& group) { return own.shard(group).zero_(); });
    pipeline.push(*model.groups()[0], message_of(*model.groups()[0], mesh.rank()));
    EXPECT_THROW(pipeline.forget(), std::logic_error);
    EXPECT_FALSE(pipeline.idle());
    EXPECT_EQ(pipeline.drain(), model.groups()[0].get());
  });
}

}  // namespace
}  // namespace ghostshard::fsdp
