// One optimizer of several: each group's parameters move as under its optimizer alone, on every mesh and after every
// checkpoint.
#include "fsdp/optimizer_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/shampoo.h"
#include "tests/fsdp/going_on.h"
#include "tests/fsdp/matrix_steps.h"

namespace ghostshard::fsdp {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using tests::run_mesh;

using MakeOf = std::function<std::unique_ptr<Optimizer>(ShardedModel&, const Chosen&)>;
struct Rule {
  const char* name;
  double rate;
  Chosen parameters;
  MakeOf make;
};

bool one_of(const Parameter& parameter, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return parameter.name() == name; });
}

// Every optimizer of fsdp/, on parameters of one block and of two.
std::vector<Rule> rules() {
  return {{"muon", 1.0,
           [](const Parameter& p) {
             return one_of(p, {"a.qkv", "a.up"});
           },
           [](ShardedModel& m, const Chosen& c) { return make_muon(m, {.weight_decay = 0.1}, c); }},
          {"soap", 0.5, [](const Parameter& p) { return one_of(p, {"b.down"}); },
           [](ShardedModel& m, const Chosen& c) {
             TiledOptions tiled;
             tiled.side = 16;
             tiled.refresh_every = 2;
             return make_soap(m, tiled, c);
           }},
          {"sgd", 2.0, [](const Parameter& p) { return one_of(p, {"table"}); },
           [](ShardedModel& m, const Chosen& c) {
             return make_sgd(m, {.momentum = 0.9, .weight_decay = 0.1}, StatesAt::kWithModel, c);
           }},
          {"adamw", 0.25,
           [](const Parameter& p) {
             return one_of(p, {"a.bias", "b.scale"});
           },
           [](ShardedModel& m, const Chosen& c) { return make_adamw(m, {.beta2 = 0.95}, StatesAt::kWithModel, c); }}};
}

std::unique_ptr<Optimizer> joined(ShardedModel& model) {
  std::vector<OptimizerGroup> groups;
  for (const Rule& rule : rules()) groups.push_back({rule.make(model, rule.parameters), rule.parameters, rule.rate});
  return join_optimizers(model, std::move(groups));
}

TEST(OptimizerGroups, MoveEachParameterAsItsGroupsOptimizerAloneWould) {
  constexpr int64_t kSteps = 5;
  std::vector<std::pair<Rule, Weights>> alone;
  for (const Rule& rule : rules()) {
    const Make whole_model = [&](ShardedModel& m) { return rule.make(m, nullptr); };
    alone.emplace_back(rule, weights_after({}, some_blocks(), whole_model, kSteps, kRate * rule.rate));
  }
  const auto single = Mesh::single();
  const ShardedModel names(*single, some_blocks());
  for (const MeshShape shape :
       {MeshShape{}, MeshShape{.shard = 2}, MeshShape{.shard = 3}, MeshShape{.replicate = 2, .shard = 2}}) {
    for (const auto& granule : {std::optional<Granule>(), std::optional(Granule::tiles(16))}) {
      const Weights found = weights_after(shape, some_blocks(granule), joined, kSteps);
      int compared = 0;
      for (const auto& [rule, expected] : alone) {
        for (const auto& parameter : names.parameters()) {
          if (!rule.parameters(*parameter)) continue;
          ++compared;
          EXPECT_TRUE(at::equal(found.at(parameter->name()), expected.at(parameter->name())))
              << parameter->name() << " by " << rule.name << " on " << shape.text();
          EXPECT_FALSE(at::equal(found.at(parameter->name()), start_of(*parameter))) << "nothing moved";
        }
      }
      EXPECT_EQ(compared, 6);
      EXPECT_TRUE(at::equal(found.at("a.frozen"), start_of(names.parameter("a.frozen"))));
    }
  }
}

TEST(OptimizerGroups, GoOnToTheBitFromACheckpointOfAnyMesh) {
  expect_to_go_on_to_the_bit(joined, "muon+soap+sgd+adamw");
}

TEST(OptimizerGroups, KeepTheStatesOfTheirOwnParametersAlone) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = joined(model);
  const int64_t tiles = tiled_numbers(40, 24, 16);
  EXPECT_EQ(optimizer->state_bytes(), 4 * ((24 * 72 + 24 * 40) + tiles + 50 * 24 + 2 * (72 + 24)));
  EXPECT_TRUE(optimizer->keeps("momentum", model.parameter("a.up")));
  EXPECT_FALSE(optimizer->keeps("momentum", model.parameter("b.down")));
  EXPECT_TRUE(optimizer->keeps("velocity", model.parameter("table")));
  EXPECT_FALSE(optimizer->keeps("first_moment", model.parameter("table")));
  EXPECT_TRUE(optimizer->keeps("second_moment", model.parameter("a.bias")));
  EXPECT_FALSE(optimizer->keeps("first_moment", model.parameter("a.frozen")));
  EXPECT_EQ(optimizer->rows().size(), 6U) << "the states of one matrix's tiles";
}

TEST(OptimizerGroups, HandTheErrorVarianceToEach) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, start_of(*parameter));
  const auto told = joined(model);
  told->set_error_variance(1e-2);
  take_steps(model, *told, 0, 4);
  const Weights untold = weights_after({}, some_blocks(), joined, 4);
  EXPECT_FALSE(at::equal(model.whole_parameter(model.parameter("b.down")), untold.at("b.down"))) << "SOAP uses it";
  EXPECT_TRUE(at::equal(model.whole_parameter(model.parameter("table")), untold.at("table"))) << "SGD does not";
  EXPECT_THROW(told->set_error_variance(1), std::logic_error);
}

TEST(OptimizerGroups, RefuseWhatBelongsToNoneOrTwo) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto join = [&](const std::vector<Chosen>& parameters, double rate = 1) {
    std::vector<OptimizerGroup> groups;
    for (const Chosen& mine : parameters)
      groups.push_back({make_adamw(model, {}, StatesAt::kWithModel, mine), mine, rate});
    return join_optimizers(model, std::move(groups));
  };
  const Chosen all = [](const Parameter&) { return true; };
  const Chosen but_up = [](const Parameter& p) { return p.name() != "a.up"; };
  const Chosen up = [](const Parameter& p) { return p.name() == "a.up"; };
  EXPECT_NO_THROW((void)join({but_up, up}));
  const auto refused = [](const char* sentence) { return ThrowsMessage<std::invalid_argument>(HasSubstr(sentence)); };
  EXPECT_THAT([&] { (void)join({but_up}); }, refused("parameter 'a.up' must belong to one group, belongs to 0"));
  EXPECT_THAT([&] { (void)join({all, up}); }, refused("parameter 'a.up' must belong to one group, belongs to 2"));
  EXPECT_THAT([&] { (void)join({all}, 0); }, refused("a group's learning rate must be finite and positive"));
  EXPECT_THAT([&] { (void)join({all}, NAN); }, refused("a group's learning rate must be finite and positive"));
  EXPECT_THAT([&] { (void)join({}); }, refused("there must be at least one group"));
}

}  // namespace
}  // namespace ghostshard::fsdp
