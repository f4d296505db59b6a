// A private step of GPT-2 on a device beside the same step on the CPU.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/gpt2/small_world.h"
#include "tests/support/run_on_device.h"

namespace ghostshard::tests {
namespace {

constexpr int64_t kBatch = 6;

// By parameter, in host memory.
using Whole = std::map<std::string, at::Tensor>;

struct Run {
  dp::RecordingChoice recording = dp::RecordingChoice::kAutomatic;
  bool two_pass = false;
  int64_t microbatch = 4;
  double noise_multiplier = 0.7;
};

dp::ClipperOptions options_of(const Run& run, const fsdp::ShardedModel& model) {
  dp::ClipperOptions options{.recording = run.recording};
  if (run.two_pass) {
    options.planned_recording.assign(model.parameters().size(), kernels::Recording::kTwoPass);
    options.planned_recording[model.parameter("transformer.wte.weight").id()] = kernels::Recording::kReplay;
  }
  return options;
}

bool same_bits(const Whole& a, const Whole& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, value] : a) {
    const at::Tensor& other = b.at(name);
    if (value.sizes() != other.sizes() || std::memcmp(value.data_ptr(), other.data_ptr(), value.nbytes()) != 0) {
      return false;
    }
  }
  return true;
}

class World {
 public:
  explicit World(std::unique_ptr<fsdp::Mesh> mesh) : mesh_(std::move(mesh)), model(*mesh_, config, {}) {
    randomize(model, 5);
    const auto path = write_texts(folder_.path() / "texts.safetensors", awkward_texts(config));
    data.emplace(path, config.vocab_size, config.n_positions);
  }
  dp::DpPlan plan(double noise_multiplier) const {
    return dp::DpPlan::make({.units = data->units(),
                             .expected_batch = kBatch,
                             .steps = 20,
                             .clip_norm = accountant::ClipNorm(3.0),
                             .noise_multiplier = accountant::NoiseMultiplier(noise_multiplier)});
  }
  // The release, in host memory.
  Whole slices(const fsdp::ShardBuffers& buffers) {
    Whole whole;
    for (const auto& group : model.parameters().groups()) {
      EXPECT_EQ(buffers.shard(*group).device(), model.parameters().device());
      for (const auto& range : group->owned()) {
        whole[group->parameters()[static_cast<size_t>(range.tensor)]->name()] =
            buffers.shard(*group).cpu().narrow(0, range.shard_offset, range.count).clone();
      }
    }
    return whole;
  }

  const gpt2::Config config = small_config(/*tied=*/true);

 private:
  std::unique_ptr<fsdp::Mesh> mesh_;
  TemporaryFolder folder_;

 public:
  gpt2::Gpt2 model;
  std::optional<gpt2::Dataset> data;
};

Whole noise_alone(std::unique_ptr<fsdp::Mesh> mesh) {
  World world(std::move(mesh));
  const auto plan = world.plan(0.7);
  const auto key = key_of(8);
  auto clipper = plan.clipper(world.model.parameters());
  auto mechanism = plan.mechanism(world.model.parameters(), key, nullptr);
  return world.slices(mechanism.release(clipper.begin(), {0}).slices());
}

TEST(OnDevice, NoiseIsTheCpusBitForBit) {
  const Whole here = noise_alone(fsdp::Mesh::single());
  EXPECT_TRUE(same_bits(noise_alone(lone_mesh()), here));
  for (const auto& [name, value] : here) EXPECT_EQ(value.ne(0).sum().item<int64_t>(), value.numel()) << name;
}

// Weights after some steps of AdamW.
Whole trained(std::unique_ptr<fsdp::Mesh> mesh, const Run& run, int64_t steps) {
  World world(std::move(mesh));
  const auto plan = world.plan(run.noise_multiplier);
  const auto key = key_of(8);
  auto clipper = plan.clipper(world.model.parameters(), options_of(run, world.model.parameters()));
  auto mechanism = plan.mechanism(world.model.parameters(), key, nullptr);
  const auto sampler = plan.sampler(key, 0, 1);
  dp::PrivateOptimizer optimizer(fsdp::make_adamw(world.model.parameters(), {.weight_decay = 0.01}));
  for (int64_t step = 0; step < steps; ++step) {
    const auto batches = sampler.draw_local({step}, run.microbatch, world.data->row_counts());
    auto sum = clipped_batch(world.model, clipper, *world.data, batches, mechanism, {step});
    optimizer.step(mechanism.release(std::move(sum), {step}), 1e-3);
  }
  return whole_weights(world.model);
}

struct Case {
  const char* name;
  Run run;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class TrainedOnDevice : public testing::TestWithParam<Case> {};

TEST_P(TrainedOnDevice, ComesToTheCpusWeightsAndRepeatsItselfBitForBit) {
  constexpr int64_t kSteps = 3;
  const Whole here = trained(fsdp::Mesh::single(), GetParam().run, kSteps);
  const Whole there = trained(lone_mesh(), GetParam().run, kSteps);
  double squared = 0, size = 0;
  for (const auto& [name, value] : here) {
    squared += (value - there.at(name)).to(at::kDouble).pow(2).sum().item<double>();
    size += value.to(at::kDouble).pow(2).sum().item<double>();
  }
  // trajectory_test.cpp derives lr·1e-5·140 a step for AdamW's distance from the float64 twin, and ten times that for
  // how one step's error turns the next; both runs may be so far off, to either side.
  EXPECT_LT(std::sqrt(squared), 2 * 10 * kSteps * 1e-3 * 1e-5 * 140) << "of weights of norm " << std::sqrt(size);
  EXPECT_TRUE(same_bits(trained(lone_mesh(), GetParam().run, kSteps), there));
}

INSTANTIATE_TEST_SUITE_P(Gpt2, TrainedOnDevice,
                         testing::Values(Case{"automatic", {}},  //
                                         Case{"replay_one_microbatch",
                                              {.recording = dp::RecordingChoice::kReplay, .microbatch = 100}},
                                         Case{"two_pass", {.two_pass = true, .microbatch = 3}}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ghostshard::tests
