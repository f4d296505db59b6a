// Optimizers whose own slices are in host memory while the model is on a device.
#include <gtest/gtest.h>

#include "fsdp/optimizer/host_update.h"
#include "tests/gpt2/small_world.h"
#include "tests/support/run_on_device.h"

namespace ghostshard::tests {
namespace {

// w ← 2w + g + s, s ← s + w: every element of every slice once, and its own.
void rule(const fsdp::UpdateSlices& now) {
  for (size_t i = 0; i < now.weights.size(); ++i) {
    EXPECT_TRUE(now.weights[i].is_cpu() && now.gradients[i].is_cpu());
    const at::Tensor before = now.weights[i].clone();
    now.weights[i].mul_(2).add_(now.gradients[i]).add_(now.states[0][i]);
    now.states[0][i].add_(before);
  }
}

TEST(HostUpdate, AppliesTheRuleOnceToEveryPiece) {
  fsdp::UpdateSlices here, device;
  std::vector<at::Tensor> here_states, device_states;
  for (const int64_t length : {1, 20, 7, 0, 33, 6}) {
    here.weights.push_back(at::randn({length}));
    here.gradients.push_back(at::randn({length}));
    here_states.push_back(at::randn({length}));
    device.weights.push_back(there(here.weights.back().clone()));
    device.gradients.push_back(there(here.gradients.back().clone()));
    device_states.push_back(here_states.back().clone());
  }
  here.states = {here_states};
  device.states = {device_states};
  fsdp::HostUpdate update(test_device(), /*piece=*/7);
  for (int step = 0; step < 3; ++step) {
    rule(here);
    update.apply(device, rule);
  }
  for (size_t i = 0; i < here.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(device.weights[i].cpu(), here.weights[i])) << "slice " << i;
    EXPECT_TRUE(at::equal(device_states[i], here_states[i])) << "slice " << i;
  }
}

TEST(HostUpdate, RefusesAPieceOfNothing) { EXPECT_ANY_THROW(fsdp::HostUpdate(test_device(), 0)); }

using Make = std::function<std::unique_ptr<fsdp::Optimizer>(fsdp::ShardedModel&, fsdp::StatesAt)>;

std::map<std::string, at::Tensor> trained(const Make& make, fsdp::StatesAt states) {
  const auto mesh = lone_mesh();
  gpt2::Gpt2 model(*mesh, small_config(/*tied=*/true), {});
  randomize(model, 5);
  const auto optimizer = make(model.parameters(), states);
  at::manual_seed(3);
  fsdp::ShardBuffers gradient(model.parameters());
  for (int step = 0; step < 3; ++step) {
    for (const auto& group : model.parameters().groups()) {
      const at::Tensor shard = gradient.shard(*group);
      shard.copy_(at::randn(shard.sizes()));
    }
    optimizer->step(gradient, 1e-2);
  }
  for (const std::string& kind : optimizer->kinds()) {
    for (const auto& group : model.parameters().groups()) {
      for (const auto& range : group->owned()) {
        EXPECT_EQ(optimizer->read(kind, *group, range).is_cpu(), states == fsdp::StatesAt::kHost) << kind;
      }
    }
  }
  return whole_weights(model);
}

struct Case {
  const char* name;
  Make make;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class StatesInHostMemory : public testing::TestWithParam<Case> {};

// Both compute the same rule in float32, of a dozen operations an element on values around 1; a few roundings apart.
TEST_P(StatesInHostMemory, ComeToTheSameWeights) {
  const auto with_model = trained(GetParam().make, fsdp::StatesAt::kWithModel);
  for (const auto& [name, value] : trained(GetParam().make, fsdp::StatesAt::kHost)) {
    EXPECT_TRUE(at::allclose(value, with_model.at(name), 0, 12 * 0x1p-23 * value.abs().max().item<double>())) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt2, StatesInHostMemory,
                         testing::Values(Case{"adamw",
                                              [](fsdp::ShardedModel& model, fsdp::StatesAt states) {
                                                return fsdp::make_adamw(model, {.weight_decay = 0.1}, states);
                                              }},
                                         Case{"momentum",
                                              [](fsdp::ShardedModel& model, fsdp::StatesAt states) {
                                                return fsdp::make_sgd(model, {.momentum = 0.9, .weight_decay = 0.1},
                                                                      states);
                                              }},
                                         Case{"sgd",
                                              [](fsdp::ShardedModel& model, fsdp::StatesAt states) {
                                                return fsdp::make_sgd(model, {}, states);
                                              }}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ghostshard::tests
