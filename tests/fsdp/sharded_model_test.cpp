#include "fsdp/sharded_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_ranks;

// Blocks of unequal size, with frozen, trainable and mixed ones; "head" stays gathered.
std::vector<BlockSpec> some_blocks() {
  return {{"a", {{"a.w", {5, 7}}, {"a.b", {7}, false}}},
          {"head", {{"head.w", {11, 3}}}, Residency::kKeep},
          {"b", {{"b.w", {13}}, {"b.u", {2, 3, 4}}}},
          {"c", {{"c.w", {3, 3}, false}}},
          {"d", {{"d.w", {1}}, {"d.v", {9, 9}}}}};
}

at::Tensor content(const Parameter& parameter, int64_t version = 0) {
  return (at::arange(parameter.numel(), at::kFloat) + 1000.0 * (parameter.id() + 1) +
          1e5 * static_cast<double>(version))
      .view(parameter.shape());
}

void fill(ShardedModel& model, int64_t version = 0) {
  for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, content(*parameter, version));
}

void expect_block_holds(ShardedModel& model, int64_t block, int64_t version = 0) {
  for (const auto& parameter : model.parameters()) {
    if (parameter->block() != block) continue;
    EXPECT_TRUE(at::equal(parameter->value(), content(*parameter, version))) << parameter->name();
  }
}

class ShardedModels : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ranks, ShardedModels, testing::Values(1, 2, 3, 4));

TEST_P(ShardedModels, give_back_whole_parameters) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    for (const auto& parameter : model.parameters()) {
      const at::Tensor whole = model.whole_parameter(*parameter);
      EXPECT_TRUE(at::equal(whole, content(*parameter))) << parameter->name();
    }
    // A copy, not a view of a buffer that is used again.
    const at::Tensor first = model.whole_parameter(*model.parameters().front());
    fill(model, 1);
    EXPECT_TRUE(at::equal(first, content(*model.parameters().front())));
  });
}

TEST_P(ShardedModels, give_back_whole_parameters_while_the_buffer_is_leased) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    const Lease lease(model, 0);  // shares its buffer with block c, the third to be gathered again and again
    const auto& c = model.parameter("c.w");
    EXPECT_TRUE(at::equal(model.whole_parameter(c), content(c)));
    expect_block_holds(model, 0);
  });
}

TEST_P(ShardedModels, share_two_buffers_and_gather_again_only_what_was_overwritten) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    const auto gathers_of = [&](int64_t block, int64_t version) {
      const int64_t before = model.gathers();
      const Lease lease(model, block);
      expect_block_holds(model, block, version);
      return mesh.world_size() == 1 ? -1 : model.gathers() - before;
    };
    const auto expect = [&](int64_t block, int64_t count, int64_t version = 0) {
      const int64_t found = gathers_of(block, version);
      if (found >= 0) {
        EXPECT_EQ(found, count) << "block " << block;
      }
    };
    // Buffers by place among a, b, c, d: a 0, b 1, c 0, d 1. Groups: a has two, the others one each.
    expect(0, 2);
    expect(0, 0);
    expect(1, 1);
    expect(2, 1);
    expect(0, 0);  // still there: b has the other buffer, head its own
    expect(3, 1);
    expect(2, 0);
    expect(0, 2);  // c overwrote it
    expect(4, 1);
    expect(2, 1);
    expect(1, 0);  // kept
    fill(model, 1);
    for (const auto& parameter : model.parameters()) {
      const Lease lease(model, parameter->block());
      EXPECT_TRUE(at::equal(parameter->value(), content(*parameter, 1))) << parameter->name();
    }
    model.weights_changed();
    expect(1, 1, 1);
  });
}

TEST_P(ShardedModels, refuse_a_buffer_whose_owner_is_leased) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    model.acquire(0);
    model.acquire(0);
    for (const auto& attempt :
         std::vector<std::function<void()>>{[&] { model.prefetch(3); }, [&] { model.acquire(3); }}) {
      try {
        attempt();
        ADD_FAILURE() << "block c took the buffer of block a";
      } catch (const std::logic_error& error) {
        EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("'c'"), testing::HasSubstr("'a'")));
      }
    }
    model.release(0);
    EXPECT_THROW(model.acquire(3), std::logic_error) << "one of two leases is left";
    model.release(0);
    model.acquire(3);
    expect_block_holds(model, 3);
    model.release(3);
    EXPECT_THROW(model.release(3), std::logic_error);
    EXPECT_THROW(model.acquire(5), std::out_of_range);
  });
}

TEST_P(ShardedModels, prefetch_gathers_once_and_ahead) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    model.prefetch(0);
    model.prefetch(2);
    model.prefetch(0);
    const int64_t issued = model.gathers();
    EXPECT_EQ(issued, mesh.world_size() == 1 ? 0 : 3);
    model.acquire(0);
    model.acquire(2);
    EXPECT_EQ(model.gathers(), issued);
    expect_block_holds(model, 0);
    expect_block_holds(model, 2);
    model.release(0);
    model.release(2);
    // Prefetched and never used; then its buffer is wanted for another.
    model.prefetch(3);
    model.acquire(0);
    expect_block_holds(model, 0);
    model.release(0);
    // Under way when the weights change.
    model.prefetch(3);
    fill(model, 1);
    model.acquire(3);
    expect_block_holds(model, 3, 1);
    model.release(3);
  });
}

TEST_P(ShardedModels, value_needs_a_gathered_block) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    const auto& parameter = model.parameter("a.w");
    EXPECT_THROW(parameter.value(), std::logic_error);
    const Lease lease(model, 0);
    const at::Tensor value = parameter.value();
    EXPECT_FALSE(value.requires_grad());
    EXPECT_EQ(value.sizes(), at::IntArrayRef({5, 7}));
    model.weights_changed();
    EXPECT_THROW(parameter.value(), std::logic_error) << "out of date";
  });
}

TEST_P(ShardedModels, leases_end_with_their_objects_and_can_be_reset) {
  run_ranks(GetParam(), [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    auto lost = std::make_unique<Lease>(model, 0);
    Lease moved(std::move(*lost));
    lost.reset();
    EXPECT_THROW(model.acquire(3), std::logic_error) << "the lease moved and lives";
    model.reset_leases();
    model.acquire(3);  // the old lease no longer counts
    model.release(3);
    const Lease other(model, 0);
    { const Lease gone(std::move(moved)); }
    EXPECT_THROW(model.acquire(3), std::logic_error) << "the end of an old lease must not release another's";
    expect_block_holds(model, 0);
  });
}

TEST(ShardedModel, with_one_rank_copies_nothing) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  fill(model);
  const Lease lease(model, 0);
  const auto& parameter = model.parameter("a.w");
  EXPECT_EQ(parameter.value().data_ptr<float>(), parameter.group().shard().data_ptr<float>() + parameter.offset());
}

TEST(ShardedModel, addresses_do_not_move) {
  run_ranks(2, [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    const auto address = [&](const std::string& name) {
      const Lease lease(model, model.parameter(name).block());
      return model.parameter(name).value().data_ptr();
    };
    void* first = address("a.w");
    EXPECT_EQ(address("c.w"), first) << "block c has the same buffer";
    fill(model, 1);
    EXPECT_EQ(address("a.w"), first);
  });
}

// A view of a weight that autograd saved must be accepted again once the block is back in its buffer.
TEST(ShardedModel, gathering_leaves_version_counters_alone) {
  run_ranks(2, [](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    fill(model);
    model.acquire(0);
    const at::Tensor value = model.parameter("a.w").value();
    const auto version = value._version();
    model.release(0);
    { const Lease other(model, 3); }
    const Lease again(model, 0);
    EXPECT_EQ(value._version(), version);
  });
}

TEST(ShardedModel, ids_and_counts_follow_the_declaration) {
  const auto mesh = Mesh::single();
  const ShardedModel model(*mesh, some_blocks());
  EXPECT_EQ(model.block_count(), 5);
  EXPECT_EQ(model.parameter("a.b").id(), 1U);
  EXPECT_EQ(model.parameter("d.v").id(), 7U);
  EXPECT_EQ(model.parameter_count(), 35 + 7 + 33 + 13 + 24 + 9 + 1 + 81);
  EXPECT_EQ(model.trainable_parameter_count(), 35 + 33 + 13 + 24 + 1 + 81);
  EXPECT_TRUE(model.block_trainable(0));
  EXPECT_FALSE(model.block_trainable(3));
  EXPECT_EQ(model.groups().size(), 6U);
  EXPECT_THROW(model.parameter("e"), std::out_of_range);
}

struct WrongModel {
  std::string name;
  std::vector<BlockSpec> blocks;
  std::string named;
};
class WrongModels : public testing::TestWithParam<WrongModel> {};
INSTANTIATE_TEST_SUITE_P(
    , WrongModels,
    testing::Values(WrongModel{"a_name_twice", {{"a", {{"w", {1}}}}, {"b", {{"w", {2}}}}}, "'w' twice"},
                    WrongModel{"no_extents", {{"a", {{"w", {}}}}}, "got []"},
                    WrongModel{"no_elements", {{"a", {{"w", {3, 0}}}}}, "got [3, 0]"}),
    [](const auto& test) { return test.param.name; });

TEST_P(WrongModels, are_refused) {
  const auto mesh = Mesh::single();
  try {
    const ShardedModel model(*mesh, GetParam().blocks);
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().named), std::string::npos) << error.what();
  }
}

TEST(ShardedModel, refuses_a_tensor_of_another_shape) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  EXPECT_THROW(model.set_parameter(model.parameter("a.w"), at::zeros({7, 5})), std::invalid_argument);
  EXPECT_THROW(model.set_parameter(model.parameter("a.w"), at::Tensor()), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::fsdp
