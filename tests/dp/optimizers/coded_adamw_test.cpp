// AdamW with 8-bit moments under privacy: its bytes, the same bits for every number of ranks, checkpoints, and what a
// known error variance changes.
#include "dp/optimizers/coded_adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fsdp/agree.h"
#include "fsdp/checkpoint.h"
#include "tests/dp/optimizers/private_steps.h"
#include "tests/support/recording_mesh.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::tests {
namespace {

using fsdp::MeshShape;
using fsdp::ShardedModel;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<fsdp::BlockSpec> blocks(const fsdp::Granule& granule = dp::eight_bit_granule()) {
  return {{"a",
           {{.name = "a.w", .shape = {30, 100}, .granule = granule},
            {.name = "a.b", .shape = {100}},
            {.name = "a.frozen", .shape = {40, 50}, .trainable = false}}},
          {"b", {{.name = "b.w", .shape = {61, 33}, .granule = granule}}}};
}

at::Tensor wave(const fsdp::Parameter& parameter, double phase) {
  return (at::arange(parameter.numel(), at::kFloat) * 0.37F + parameter.id() + phase).sin().view(parameter.shape());
}

dp::CodedAdamWOptions options() { return {.rule = {.weight_decay = 0.05}, .least_coded = 1000}; }

// The same gradient for every element, whatever the mesh.
void take_steps(ShardedModel& model, fsdp::Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    fsdp::ShardBuffers gradient(model);
    for (const auto& group : model.groups()) {
      if (!group->trainable()) continue;
      gradient.shard(*group).fill_(std::numeric_limits<float>::quiet_NaN());  // padding, which nothing may read
      for (const auto& range : group->owned()) {
        const auto& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
        gradient.shard(*group)
            .narrow(0, range.shard_offset, range.count)
            .copy_(wave(parameter, 3.0 * static_cast<double>(step)).view({-1}).narrow(0, range.first, range.count));
      }
    }
    optimizer.step(gradient, 0.01);
  }
}

// Weights, and every state by its kind and parameter.
Weights everything(ShardedModel& model, fsdp::Optimizer& optimizer) {
  Weights found = whole_of(model);
  const fsdp::Mesh& mesh = model.mesh();
  for (const auto& group : model.groups()) {
    for (const auto& range : group->owned()) {
      const auto& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
      for (const std::string& kind : optimizer.kinds()) {
        if (!optimizer.keeps(kind, parameter)) continue;
        at::Tensor& whole = found[kind + "/" + parameter.name()];
        if (!whole.defined()) whole = at::full({parameter.numel()}, std::numeric_limits<float>::quiet_NaN());
        whole.narrow(0, range.first, range.count).copy_(optimizer.read(kind, *group, range));
      }
    }
  }
  EXPECT_EQ(mesh.model_rank(), 0);
  return found;
}

Weights after_steps(const MeshShape& shape, double variance, int64_t steps,
                    const fsdp::Granule& granule = dp::eight_bit_granule()) {
  Weights result;
  std::mutex mutex;
  run_mesh(shape, [&](fsdp::Mesh& mesh) {
    ShardedModel model(mesh, blocks(granule));
    for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, wave(*parameter, 0.5));
    const auto optimizer = dp::make_coded_adamw(model, options());
    optimizer->set_error_variance(variance);
    take_steps(model, *optimizer, 0, steps);
    const Weights mine = everything(model, *optimizer);
    const std::lock_guard lock(mutex);
    // Each rank knows its own elements of the states.
    for (const auto& [name, value] : mine) {
      at::Tensor& joined = result[name];
      joined = joined.defined() ? at::where(value.isnan(), joined, value) : value;
    }
  });
  return result;
}

class CodedMoments : public testing::TestWithParam<double> {};  // of the error variance
INSTANTIATE_TEST_SUITE_P(, CodedMoments, testing::Values(0.0, 0.5),
                         [](const auto& test) { return test.param > 0 ? "known_error" : "no_known_error"; });

TEST_P(CodedMoments, AreTheSameBitsForEveryNumberOfRanks) {
  const Weights expected = after_steps({}, GetParam(), 6);
  EXPECT_EQ(expected.size(), 4U + 2U * 3U);
  for (const auto& [name, value] : expected) EXPECT_FALSE(value.isnan().any().item<bool>()) << name;
  for (const int64_t ranks : {2, 3, 4, 8}) {
    for (const auto& [name, value] : after_steps({.shard = ranks}, GetParam(), 6)) {
      EXPECT_TRUE(at::equal(value, expected.at(name))) << name << " on " << ranks;
    }
  }
  for (const auto& [name, value] : after_steps({.shard = 2}, GetParam(), 6, fsdp::Granule::elements(512))) {
    EXPECT_TRUE(at::equal(value, expected.at(name))) << name << " with a larger granule";
  }
}

TEST_P(CodedMoments, GoOnToTheBitFromACheckpointOfAnotherMesh) {
  const Weights expected = after_steps({.shard = 2}, GetParam(), 7);
  const TemporaryFolder folder;
  run_mesh({.shard = 3}, [&](fsdp::Mesh& mesh) {
    ShardedModel model(mesh, blocks());
    for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, wave(*parameter, 0.5));
    const auto optimizer = dp::make_coded_adamw(model, options());
    optimizer->set_error_variance(GetParam());
    take_steps(model, *optimizer, 0, 4);
    fsdp::write_checkpoint(model, *optimizer, folder.path(), 4, {});
  });
  run_mesh({.shard = 4}, [&](fsdp::Mesh& mesh) {
    ShardedModel model(mesh, blocks(fsdp::Granule::elements(1024)));
    const auto optimizer = dp::make_coded_adamw(model, options());
    optimizer->set_error_variance(GetParam());
    fsdp::load_checkpoint(model, *optimizer, fsdp::list_checkpoints(folder.path()).at(0));
    take_steps(model, *optimizer, 4, 7);
    for (const auto& [name, value] : whole_of(model)) EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
  });
}

TEST(CodedMoment, ComesCloseToAdamWOfFloat32) {
  // The rule on the same gradients with exact moments. A first moment's code is off by 0.7 % of the largest in its
  // stretch, a second moment's by 0.35 %: half a per cent and more of a step, which is 0.01, in each of six steps.
  Weights exact;
  run_mesh({}, [&](fsdp::Mesh& mesh) {
    ShardedModel model(mesh, blocks());
    for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, wave(*parameter, 0.5));
    const auto optimizer = fsdp::make_adamw(model, options().rule);
    take_steps(model, *optimizer, 0, 6);
    exact = whole_of(model);
  });
  const Weights coded = after_steps({}, 0, 6);
  for (const auto& [name, value] : exact) {
    const double apart = (coded.at(name) - value).abs().mean().item<double>();
    EXPECT_LT(apart, 6 * 0.01 * 0.01) << name;
  }
}

// GPT-2's block of width 768: 2·(1 + 4/256) bytes for large parameters, 8 for vectors of fewer than 4,096 elements.
TEST(CodedMoment, TakesLittleMoreThanTwoBytesAParameter) {
  const int64_t d = 768;
  std::vector<fsdp::ParameterSpec> parameters;
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {d}, {d}, {d, 3 * d}, {3 * d}, {d, d}, {d}, {d}, {d}, {d, 4 * d}, {4 * d}, {4 * d, d}, {d}}) {
    parameters.push_back({.name = std::to_string(parameters.size()), .shape = shape});
    if (shape.size() == 2) parameters.back().granule = dp::eight_bit_granule();
  }
  int64_t bytes = 0, elements = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    RecordingMesh mesh({.shard = 4}, rank);
    ShardedModel model(mesh, {{"block", parameters}});
    bytes += dp::make_coded_adamw(model, {})->state_bytes();
    elements = model.parameter_count();
  }
  const double per_parameter = static_cast<double>(bytes) / static_cast<double>(elements);
  EXPECT_LE(per_parameter, 2.07);
  EXPECT_GT(per_parameter, 2.03) << "scales and vectors are counted";
}

// Moments in bfloat16 need no granule, whatever the shards cut.
TEST(SixteenBitMoments, AreTheSameBitsForEveryNumberOfRanksAndFromEveryCheckpoint) {
  const dp::CodedAdamWOptions sixteen{.rule = {.weight_decay = 0.05}, .bits = dp::MomentBits::kSixteen};
  for (const double variance : {0.0, 0.5}) {
    const auto make = [&](ShardedModel& model) {
      auto optimizer = dp::make_coded_adamw(model, sixteen);
      optimizer->set_error_variance(variance);
      return optimizer;
    };
    Weights expected;
    for (const int64_t ranks : {1, 2, 3}) {
      const TemporaryFolder folder;
      run_mesh({.shard = ranks}, [&](fsdp::Mesh& mesh) {
        ShardedModel model(mesh, blocks(fsdp::Granule::elements(1)));
        for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, wave(*parameter, 0.5));
        const auto optimizer = make(model);
        take_steps(model, *optimizer, 0, 3);
        fsdp::write_checkpoint(model, *optimizer, folder.path(), 3, {});
        take_steps(model, *optimizer, 3, 6);
        const Weights mine = everything(model, *optimizer);
        if (ranks == 1) expected = mine;
        for (const auto& [name, value] : mine) {
          const at::Tensor& whole = expected.at(name);
          EXPECT_TRUE(at::equal(at::where(value.isnan(), whole, value), whole)) << name << " on " << ranks;
        }
      });
      run_mesh({.shard = 4 - ranks}, [&](fsdp::Mesh& mesh) {
        ShardedModel model(mesh, blocks());
        const auto optimizer = make(model);
        fsdp::load_checkpoint(model, *optimizer, fsdp::list_checkpoints(folder.path()).at(0));
        take_steps(model, *optimizer, 3, 6);
        for (const auto& [name, value] : whole_of(model)) EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
      });
    }
  }
}

TEST(SixteenBitMoments, TakeFourBytesAParameter) {
  const auto mesh = fsdp::Mesh::single();
  ShardedModel model(*mesh, blocks());
  EXPECT_EQ(dp::make_coded_adamw(model, {.bits = dp::MomentBits::kSixteen})->state_bytes(),
            4 * model.trainable_parameter_count());
}

TEST(CodedMoment, RefusesShardsThatCutAScale) {
  for (int64_t rank = 0; rank < 3; ++rank) {  // every rank, with one sentence
    RecordingMesh mesh({.shard = 3}, rank);
    ShardedModel model(mesh, {{"a", {{.name = "w", .shape = {50, 100}, .granule = fsdp::Granule::rows()}}}});
    EXPECT_THAT(
        [&] { dp::make_coded_adamw(model, {}); },
        ThrowsMessage<std::invalid_argument>(HasSubstr(
            "parameter 'w': 8-bit moments need shards that are cut between 256 elements (its granule), rank ")));
    EXPECT_NO_THROW(dp::make_coded_adamw(model, {.bits = dp::MomentBits::kThirtyTwo}));
    EXPECT_NO_THROW(dp::make_coded_adamw(model, {.least_coded = 5001}));
  }
}

TEST(CodedMoment, RefusesOptionsAsAdamWDoes) {
  const auto mesh = fsdp::Mesh::single();
  ShardedModel model(*mesh, blocks());
  EXPECT_THROW(dp::make_coded_adamw(model, {.rule = {.beta1 = 1}}), std::invalid_argument);
  EXPECT_THROW(dp::make_coded_adamw(model, {.rule = {.epsilon = 0}}), std::invalid_argument);
  EXPECT_THROW(dp::make_coded_adamw(model, {.rule = {.weight_decay = NAN}}), std::invalid_argument);
  EXPECT_THROW(dp::make_coded_adamw(model, {.subtract_above = 0.0}), std::invalid_argument);
  const auto optimizer = dp::make_coded_adamw(model, options());
  EXPECT_THROW(optimizer->set_error_variance(-1), std::invalid_argument);
  EXPECT_THROW(optimizer->set_error_variance(NAN), std::invalid_argument);
  EXPECT_THROW(optimizer->step(fsdp::ShardBuffers(model), 0), std::invalid_argument);
  EXPECT_EQ(optimizer->steps(), 0) << "a refused step is none";
  take_steps(model, *optimizer, 0, 1);
  EXPECT_THROW(optimizer->set_error_variance(1), std::logic_error) << "states are relative to it";
}

TEST(CodedMoment, OfAnotherErrorVarianceIsNotLoaded) {
  const TemporaryFolder folder;
  const auto mesh = fsdp::Mesh::single();
  ShardedModel model(*mesh, blocks());
  const auto optimizer = dp::make_coded_adamw(model, options());
  take_steps(model, *optimizer, 0, 1);
  fsdp::write_checkpoint(model, *optimizer, folder.path(), 1, {});
  const auto other = dp::make_coded_adamw(model, options());
  other->set_error_variance(1);
  EXPECT_THROW(fsdp::load_checkpoint(model, *other, fsdp::list_checkpoints(folder.path()).at(0)), fsdp::AgreedFailure);
}

// Under noise alone AdamW's steps have the size of the learning rate; with the noise's variance taken out down to a
// floor, they are 1/sqrt(floor) times as long.
TEST(CorrectedAdamW, DividesByTheSignalAloneDownToItsFloor) {
  const auto mesh = fsdp::Mesh::single();
  const auto length_of_steps = [&](std::optional<double> floor, double signal) {
    ShardedModel model(*mesh, {{"a", {{.name = "w", .shape = {40, 100}}}}});
    const auto optimizer = dp::make_coded_adamw(model, {.bits = dp::MomentBits::kThirtyTwo, .subtract_above = floor});
    optimizer->set_error_variance(1.0);
    const auto generator = at::detail::createCPUGenerator(4);
    fsdp::ShardBuffers gradient(model);
    const auto& group = *model.groups().front();
    for (int step = 0; step < 3000; ++step) {
      if (step == 2900) model.set_parameter(model.parameter("w"), at::zeros({40, 100}));
      gradient.shard(group).copy_(at::randn({group.plan().shard_size()}, generator).add_(signal));
      optimizer->step(gradient, 0.01);
    }
    return (model.whole_parameter(model.parameter("w")).mean().item<double>()) / (-0.01 * 100);
  };
  // Mean movement a step, relative to the rate: signal / sqrt(second moment). Sampling error of the mean over 4,000
  // elements and 100 steps: below 0.01 of the noise.
  EXPECT_NEAR(length_of_steps(std::nullopt, 0.5), 0.5 / std::sqrt(1.25), 0.03);
  EXPECT_NEAR(length_of_steps(0.01, 0.5), 1.0, 0.06) << "noise is taken out: as without noise";
  EXPECT_NEAR(length_of_steps(0.25, 0.1), 0.1 / std::sqrt(0.25), 0.03) << "the floor";
}

// Post-processing: a second model that sees nothing but the released gradients and public numbers ends in the same
// bits.
TEST(EveryOptimizer, IsAFunctionOfReleasedGradientsAndPublicNumbers) {
  for (const std::string rule :
       {"sgd", "adamw", "adamw8bit", "adamw16bit", "adamw_corrected", "muon", "shampoo", "soap"}) {
    run_mesh({.shard = 2}, [&](fsdp::Mesh& mesh) {
      const auto model_of = [&] {
        auto model = std::make_unique<ShardedModel>(mesh, layer_blocks(dp::eight_bit_granule()));
        for (const auto& p : model->parameters()) model->set_parameter(*p, start_of(p->shape()));
        return model;
      };
      const auto model = model_of();
      auto optimizer = private_optimizer(rule, *model, 4);
      std::vector<at::Tensor> released;  // of the one group
      take_private_steps(*model, optimizer, 4, [&](const dp::PrivateGradient& gradient) {
        released.push_back(gradient.slices().shard(*model->groups().front()).clone());
      });
      const auto again = model_of();
      const auto replayed = optimizer_of(rule, *again);
      replayed->set_error_variance(plan_of_steps(4).release_variance());
      fsdp::ShardBuffers gradient(*again);
      for (const at::Tensor& step : released) {
        gradient.shard(*again->groups().front()).copy_(step);
        replayed->step(gradient, 0.01);
      }
      const Weights expected = whole_of(*model);
      for (const auto& [name, value] : whole_of(*again)) {
        EXPECT_TRUE(at::equal(value, expected.at(name))) << rule << " " << name;
      }
    });
  }
}

TEST(CodedMoment, PrivateStepsAreTheSameWhereverTheyAreCut) {
  for (const std::string rule : {"adamw8bit", "adamw16bit", "adamw_corrected", "muon", "shampoo", "soap"}) {
    for (const int64_t ranks : {1, 2, 3}) {
      const Weights expected = private_steps({.shard = ranks}, fsdp::Granule::elements(256), rule, 5);
      for (const auto& [name, value] : private_steps({.shard = ranks}, fsdp::Granule::whole(), rule, 5)) {
        EXPECT_TRUE(at::equal(value, expected.at(name))) << rule << " " << name << " on " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace ghostshard::tests
