// Gathered weights in bfloat16 over float32 shards.
#include <gtest/gtest.h>

#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"
#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_ranks;

std::vector<BlockSpec> blocks() {
  return {{"kept", {{"table", {37, 8}}, {"fixed", {5}, false}}, Residency::kKeep},
          {"one", {{"w1", {8, 24}}, {"b1", {24}}}},
          {"two", {{"w2", {24, 8}}}},
          {"three", {{"w3", {8, 24}}}}};
}

void fill(ShardedModel& model) {
  const at::Generator generator = at::detail::createCPUGenerator(4);
  for (const auto& parameter : model.parameters()) {
    model.set_parameter(*parameter, at::randn(parameter->shape(), generator));
  }
}

class ComputeDtype : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ranks, ComputeDtype, testing::Values(1, 2, 3));

TEST_P(ComputeDtype, values_are_the_master_weights_rounded_once) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, blocks(), at::kBFloat16);
    fill(model);
    for (int round = 0; round < 2; ++round) {
      for (const auto& parameter : model.parameters()) {
        const at::Tensor master = model.whole_parameter(*parameter);
        EXPECT_EQ(master.scalar_type(), at::kFloat);
        EXPECT_FALSE(at::equal(master, master.to(at::kBFloat16).to(at::kFloat))) << "the test needs digits to lose";
        const Lease lease(model, parameter->block());
        EXPECT_EQ(parameter->value().scalar_type(), at::kBFloat16);
        EXPECT_TRUE(at::equal(parameter->value(), master.to(at::kBFloat16))) << parameter->name();
      }
      fill(model);  // other weights: the rounded ones are out of date
    }
  });
}

TEST_P(ComputeDtype, half_the_bytes_are_sent) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    const auto bytes_of = [&](at::ScalarType type) {
      ShardedModel model(mesh, blocks(), type);
      fill(model);
      const int64_t before = mesh.gather().bytes_sent();
      for (int64_t u = 0; u < model.block_count(); ++u) const Lease lease(model, u);
      return mesh.gather().bytes_sent() - before;
    };
    EXPECT_EQ(2 * bytes_of(at::kBFloat16), bytes_of(at::kFloat));
  });
}

TEST_P(ComputeDtype, steps_too_small_for_bfloat16_add_up_in_the_master_weights) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, blocks(), at::kBFloat16);
    for (const auto& parameter : model.parameters()) {
      model.set_parameter(*parameter, at::ones(parameter->shape()));
    }
    const auto optimizer = make_sgd(model, {});
    ShardBuffers gradient(model);
    for (const auto& group : model.groups()) {
      if (group->trainable()) gradient.shard(*group).fill_(1.0);
    }
    // Near 1 bfloat16 has steps of 2^-8 downwards: one step of 2^-12 is lost there, 32 of them are two steps.
    const Parameter& weight = model.parameter("w2");
    for (int step = 0; step < 32; ++step) {
      optimizer->step(gradient, 0x1p-12);
      const Lease lease(model, weight.block());
      if (step == 0) {
        EXPECT_EQ(weight.value().flatten()[0].item<float>(), 1.0F);
      }
    }
    const Lease lease(model, weight.block());
    EXPECT_EQ(weight.value().flatten()[0].item<float>(), 1.0F - 0x1p-7F);
  });
}

TEST(ComputeDtypes, other_dtypes_are_refused) {
  const auto mesh = Mesh::single();
  EXPECT_THROW(ShardedModel(*mesh, blocks(), at::kHalf), std::invalid_argument);
  EXPECT_THROW(ShardedModel(*mesh, blocks(), at::kDouble), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::fsdp
