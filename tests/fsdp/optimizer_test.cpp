#include "fsdp/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/ranks.h"

namespace ghostshard::fsdp {
namespace {
using tests::run_ranks;

std::vector<BlockSpec> some_blocks() {
  return {{"a", {{"a.w", {23, 7}}, {"a.b", {7}}, {"a.f", {5}, false}}}, {"b", {{"b.b", {101}}, {"b.w", {3, 3, 3}}}}};
}

at::Tensor first_weights(const Parameter& parameter) {
  return (at::arange(parameter.numel(), at::kFloat) * 0.61F + parameter.id()).sin().view(parameter.shape());
}
at::Tensor waves(const Parameter& parameter, int64_t step) {
  return (at::arange(parameter.numel(), at::kFloat) * 0.23F + parameter.id() + 2.0 * static_cast<double>(step))
      .cos()
      .view(parameter.shape());
}

// One element's weight after some steps of torch.optim's rule, in double precision.
using Rule = std::function<double(double weight, const std::vector<double>& gradients, bool decayed)>;

constexpr double kLearningRate = 0.05;

Rule sgd_rule(SgdOptions o) {
  return [o](double w, const std::vector<double>& gradients, bool decayed) {
    double v = 0;
    for (size_t t = 0; t < gradients.size(); ++t) {
      const double d = gradients[t] + (decayed ? o.weight_decay * w : 0.0);
      v = t == 0 ? d : o.momentum * v + d;
      w -= kLearningRate * v;
    }
    return w;
  };
}

Rule adamw_rule(AdamWOptions o) {
  return [o](double w, const std::vector<double>& gradients, bool decayed) {
    double m = 0, v = 0;
    for (size_t t = 0; t < gradients.size(); ++t) {
      const double g = gradients[t], n = static_cast<double>(t + 1);
      w -= decayed ? kLearningRate * o.weight_decay * w : 0.0;
      m = o.beta1 * m + (1 - o.beta1) * g;
      v = o.beta2 * v + (1 - o.beta2) * g * g;
      const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(o.beta2, n)) + o.epsilon;
      w -= kLearningRate / (1 - std::pow(o.beta1, n)) * m / denominator;
    }
    return w;
  };
}

struct OptimizerCase {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(ShardedModel&)> make;
  Rule rule;
};

OptimizerCase sgd(std::string name, SgdOptions o) {
  return {std::move(name), [o](ShardedModel& model) { return make_sgd(model, o); }, sgd_rule(o)};
}
OptimizerCase adamw(std::string name, AdamWOptions o) {
  return {std::move(name), [o](ShardedModel& model) { return make_adamw(model, o); }, adamw_rule(o)};
}

class Optimizers : public testing::TestWithParam<std::tuple<OptimizerCase, int64_t>> {};

INSTANTIATE_TEST_SUITE_P(
    , Optimizers,
    testing::Combine(testing::Values(sgd("sgd", {}), sgd("sgd_momentum", {.momentum = 0.9}),
                                     sgd("sgd_momentum_decay", {.momentum = 0.9, .weight_decay = 0.1}),
                                     adamw("adamw", {}),
                                     adamw("adamw_decay", {.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.3}),
                                     adamw("adamw_large_epsilon", {.epsilon = 0.1})),
                     testing::Values(1, 2, 4)),
    [](const auto& test) {
      return std::get<0>(test.param).name + "_on_" + std::to_string(std::get<1>(test.param)) + "_ranks";
    });

TEST_P(Optimizers, follow_the_slow_twin) {
  const auto& [param, ranks] = GetParam();
  constexpr int64_t kSteps = 5;
  run_ranks(ranks, [&, &param = param](Mesh& mesh) {
    ShardedModel model(mesh, some_blocks());
    for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, first_weights(*parameter));
    const auto optimizer = param.make(model);
    ShardBuffers gradient(model);
    for (int64_t step = 0; step < kSteps; ++step) {
      for (const auto& group : model.groups()) {
        if (!group->trainable()) continue;
        // Garbage in the padding, which nothing may read.
        gradient.shard(*group).fill_(std::numeric_limits<float>::quiet_NaN());
        for (const OwnedRange& range : group->owned()) {
          const Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
          gradient.shard(*group)
              .narrow(0, range.shard_offset, range.count)
              .copy_(waves(parameter, step).flatten().narrow(0, range.first, range.count));
        }
      }
      optimizer->step(gradient, kLearningRate);
    }
    for (const auto& parameter : model.parameters()) {
      const at::Tensor found = model.whole_parameter(*parameter).flatten();
      const at::Tensor start = first_weights(*parameter).flatten();
      std::vector<at::Tensor> gradients;
      for (int64_t step = 0; step < kSteps; ++step) gradients.push_back(waves(*parameter, step).flatten());
      for (int64_t i = 0; i < parameter->numel(); ++i) {
        std::vector<double> of_element;
        for (const at::Tensor& g : gradients) of_element.push_back(g[i].item<float>());
        const double weight = start[i].item<float>();
        const double expected =
            parameter->trainable() ? param.rule(weight, of_element, parameter->shape().size() >= 2) : weight;
        // Each step rounds a handful of numbers of size about 1 in float32 (unit roundoff 2^-24): eight roundings a
        // step, on moments that were rounded in the steps before.
        ASSERT_NEAR(found[i].item<float>(), expected, 8 * kSteps * std::pow(2.0, -24)) << parameter->name() << " " << i;
      }
    }
    for (const auto& group : model.groups()) {
      at::Tensor rest = group->shard().clone();
      for (const OwnedRange& range : group->owned()) {
        rest.narrow(0, range.shard_offset, range.count).zero_();
      }
      EXPECT_TRUE(rest.eq(0).all().item<bool>()) << "padding was touched";
    }
  });
}

TEST(Optimizer, ends_what_is_gathered) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  { const Lease lease(model, 0); }
  EXPECT_TRUE(model.gathered(0));
  make_sgd(model, {})->step(ShardBuffers(model), 0.1);
  EXPECT_FALSE(model.gathered(0));
}

struct WrongOptions {
  std::string name;
  std::function<void(ShardedModel&)> make;
};
class WrongOptimizers : public testing::TestWithParam<WrongOptions> {};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    , WrongOptimizers,
    testing::Values(WrongOptions{"momentum_one", [](ShardedModel& m) { make_sgd(m, {.momentum = 1.0}); }},
                    WrongOptions{"momentum_nan", [](ShardedModel& m) { make_sgd(m, {.momentum = kNaN}); }},
                    WrongOptions{"sgd_decay_negative", [](ShardedModel& m) { make_sgd(m, {.weight_decay = -0.1}); }},
                    WrongOptions{"beta1_one", [](ShardedModel& m) { make_adamw(m, {.beta1 = 1.0}); }},
                    WrongOptions{"beta2_nan", [](ShardedModel& m) { make_adamw(m, {.beta2 = kNaN}); }},
                    WrongOptions{"epsilon_zero", [](ShardedModel& m) { make_adamw(m, {.epsilon = 0.0}); }},
                    WrongOptions{"rate_zero", [](ShardedModel& m) { make_sgd(m, {})->step(ShardBuffers(m), 0.0); }},
                    WrongOptions{"rate_nan", [](ShardedModel& m) { make_adamw(m, {})->step(ShardBuffers(m), kNaN); }}),
    [](const auto& test) { return test.param.name; });

TEST_P(WrongOptimizers, are_refused) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  EXPECT_THROW(GetParam().make(model), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::fsdp
