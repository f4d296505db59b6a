// A whole private run beside its slow twin: the same batches and the same noise, everything else in float64, one text
// at a time, with the optimizers' rules written out. They must arrive at the same weights and the same loss.
#include <gtest/gtest.h>

#include "tests/gpt2/small_world.h"

namespace ghostshard::tests {
namespace {

using Weights = std::map<std::string, at::Tensor>;

// A device is emulated hundreds of times slower.
int64_t steps() { return test_device().is_cpu() ? 20 : 6; }
constexpr int64_t kBatch = 6;
constexpr double kClipNorm = 3.0;

struct Case {
  const char* name;
  bool adamw;
  double learning_rate;
  double noise_multiplier;
  dp::Clipping clipping = dp::Clipping::kFlat;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Trajectory : public ::testing::TestWithParam<Case> {
 protected:
  const Case& c = GetParam();
  const gpt2::Config config = small_config(/*tied=*/true);
  const std::vector<Text> texts = awkward_texts(config);
  const std::unique_ptr<fsdp::Mesh> mesh = lone_mesh();
  gpt2::Gpt2 model{*mesh, config, {}};
  const dp::DpPlan plan = dp::DpPlan::make({.units = static_cast<int64_t>(texts.size()),
                                            .expected_batch = kBatch,
                                            .steps = steps(),
                                            .clip_norm = accountant::ClipNorm(kClipNorm),
                                            .clipping = c.clipping,
                                            .noise_multiplier = accountant::NoiseMultiplier(c.noise_multiplier)});

  void SetUp() override { randomize(model, 5); }

  Weights fast() {
    const TemporaryFolder folder;
    const auto path = write_texts(folder.path() / "texts.safetensors", texts);
    const gpt2::Dataset data(path, config.vocab_size, config.n_positions);
    const auto key = key_of(8);
    auto clipper = plan.clipper(model.parameters());
    auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
    const auto sampler = plan.sampler(key, 0, 1);
    dp::PrivateOptimizer optimizer(c.adamw ? fsdp::make_adamw(model.parameters(), {})
                                           : fsdp::make_sgd(model.parameters(), {}));
    for (int64_t step = 0; step < steps(); ++step) {
      auto sum =
          clipped_batch(model, clipper, data, sampler.draw_local({step}, 4, data.row_counts()), mechanism, {step});
      optimizer.step(mechanism.release(std::move(sum), {step}), c.learning_rate);
    }
    return whole_weights(model);
  }

  // sigma·C·N(0,1) of one step, as the mechanism draws it: the release of an empty batch.
  static Gradients noise(dp::Clipper& clipper, dp::GaussianMechanism& mechanism, fsdp::ShardedModel& parameters,
                         int64_t step) {
    const auto gradient = mechanism.release(clipper.begin(), {step});
    Gradients drawn;
    for (const auto& group : parameters.groups()) {
      const at::Tensor slice = gradient.slices().shard(*group).cpu().to(at::kDouble) * static_cast<double>(kBatch);
      for (const auto& range : group->owned()) {
        const fsdp::Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
        EXPECT_EQ(range.count, parameter.numel());
        drawn[parameter.name()] = slice.narrow(0, range.shard_offset, range.count).reshape(parameter.shape());
      }
    }
    return drawn;
  }

  Weights slow(bool with_noise) {
    Weights weights, first_moment, second_moment;
    for (const auto& [name, value] : whole_weights(model)) {
      weights[name] = value.to(at::kDouble);
      first_moment[name] = at::zeros_like(weights[name]);
      second_moment[name] = at::zeros_like(weights[name]);
    }
    std::map<std::string, int64_t> layers;
    if (c.clipping == dp::Clipping::kPerLayer) {
      for (const auto& parameter : model.parameters().parameters())
        layers[parameter->name()] = parameter->group().index();
    }
    const auto key = key_of(8);
    auto clipper = plan.clipper(model.parameters());
    auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
    const auto sampler = plan.sampler(key, 0, 1);
    for (int64_t step = 0; step < steps(); ++step) {
      std::vector<Unit> batch;
      const std::vector<int64_t> one_each(texts.size(), 1);
      for (const auto& units : sampler.draw_local({step}, 1, one_each)) {
        for (const int64_t unit : units) batch.push_back({texts[static_cast<size_t>(unit)]});
      }
      const Gradients sum = clipped_sum(ReferenceGpt2(config, weights, {}), batch, kClipNorm, layers);
      const Gradients drawn = noise(clipper, mechanism, model.parameters(), step);
      for (auto& [name, w] : weights) {
        at::Tensor g = sum.contains(name) ? sum.at(name) : at::zeros_like(w);
        if (with_noise) g = g + drawn.at(name);
        g = g / static_cast<double>(kBatch);
        if (!c.adamw) {
          w = w - c.learning_rate * g;
          continue;
        }
        const double t = static_cast<double>(step + 1);
        first_moment[name] = 0.9 * first_moment[name] + 0.1 * g;
        second_moment[name] = 0.999 * second_moment[name] + 0.001 * g * g;
        const at::Tensor m = first_moment[name] / (1 - std::pow(0.9, t));
        const at::Tensor v = second_moment[name] / (1 - std::pow(0.999, t));
        w = w - c.learning_rate * m / (v.sqrt() + 1e-8);
      }
    }
    return weights;
  }

  double mean_loss(const Weights& weights) const {
    const ReferenceGpt2 reference(config, weights, {});
    double sum = 0;
    for (const Text& text : texts) sum += reference.loss({text}).item<double>();
    return sum / static_cast<double>(texts.size());
  }
};

TEST_P(Trajectory, EqualsTheSlowReferenceUnderTheSameNoise) {
  const double before = mean_loss(whole_weights(model));
  const Weights expected = slow(/*with_noise=*/true), without = slow(/*with_noise=*/false);
  const Weights found = fast();
  double difference = 0, moved = 0, size = 0;
  for (const auto& [name, value] : found) {
    difference += (value - expected.at(name)).pow(2).sum().item<double>();
    moved += (without.at(name) - expected.at(name)).pow(2).sum().item<double>();
    size += expected.at(name).pow(2).sum().item<double>();
  }
  // A step's clipped sum errs by 1e-5 of itself (clipped_sum_test.cpp), so one step moves the weights by at most
  // lr·1e-5·(n·C/B = 6) wrongly; Adam's step, by its normalisation, by about lr·1e-5·sqrt(elements ~ 2e4) if noise
  // is of the gradient's size. As many such steps, and ten times that because one step's error turns the next
  // gradients.
  const double per_step = c.learning_rate * 1e-5 * (c.adamw ? 140 : 6);
  EXPECT_LT(std::sqrt(difference), 10 * static_cast<double>(steps()) * per_step)
      << "of weights of norm " << std::sqrt(size);
  EXPECT_GT(std::sqrt(moved), 1000 * std::sqrt(difference)) << "the noise must matter, or nothing was compared";
  const double loss = mean_loss(found);
  EXPECT_NEAR(loss, mean_loss(expected), 1e-4 * loss);
  EXPECT_NE(loss, before);
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Trajectory,
                         ::testing::Values(Case{"sgd", false, 0.05, 0.7}, Case{"adamw", true, 1e-3, 0.7},
                                           Case{"adamw_little_noise", true, 1e-3, 0.1},
                                           Case{"per_layer_adamw", true, 1e-3, 0.7, dp::Clipping::kPerLayer}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace ghostshard::tests
