// A device holds as much memory at step 300 as at step 3: between steps, and at a step's peak.
#include <gtest/gtest.h>

#include "tests/emulation/device/memory.h"
#include "tests/gpt2/small_world.h"
#include "tests/support/run_on_device.h"

namespace ghostshard::tests {
namespace {

struct Case {
  const char* name;
  dp::RecordingChoice recording;
  bool accumulate;
  int64_t steps = 10;
  int64_t microbatch = 1;
  int64_t shards = 1;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class SteadyMemory : public testing::TestWithParam<Case> {};

struct Use {
  size_t peak, after;
  bool operator==(const Use&) const = default;
};

TEST_P(SteadyMemory, TakesAsMuchInTheLastStepAsInTheThird) {
  const Case& c = GetParam();
  gpt2::Config config = small_config(/*tied=*/true, /*heads=*/1);
  config.n_layer = 1;
  config.n_embd = 8;
  config.n_inner = 8;
  const TemporaryFolder folder;
  const auto texts = write_texts(folder.path() / "texts.safetensors", {{{1, 5, 2, 9}, {1, 1, 1, 1}}, {{7, 3}, {1, 1}}});
  const auto train = [&](fsdp::Mesh& mesh) {
    gpt2::Gpt2 model(mesh, config, {});
    randomize(model, 3);
    const gpt2::Dataset data(texts, config.vocab_size, config.n_positions);
    // The whole data in every step: a sampled batch's size would show in memory.
    const auto plan = dp::DpPlan::make({.units = data.units(),
                                        .expected_batch = data.units(),
                                        .steps = 300,
                                        .clip_norm = accountant::ClipNorm(3.0),
                                        .noise_multiplier = accountant::NoiseMultiplier(1.0)});
    const auto key = key_of(1);
    const std::vector<bool> streamed(model.parameters().groups().size(), !c.accumulate);
    auto clipper = plan.clipper(model.parameters(), {.recording = c.recording, .streamed = streamed});
    auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
    dp::PrivateOptimizer optimizer(fsdp::make_adamw(model.parameters(), {.weight_decay = 0.1}));
    const auto sampler = plan.sampler(key, mesh.data_rank(), mesh.data_size());
    Use third{};
    for (int64_t step = 0; step < c.steps; ++step) {
      if (mesh.world_size() == 1) emulation::reset_device_bytes_peak();
      const auto batches = sampler.draw_local({step}, c.microbatch, data.row_counts());
      auto sum = clipped_batch(model, clipper, data, batches, mechanism, {step});
      optimizer.step(mechanism.release(std::move(sum), {step}), 1e-3);
      mesh.control().barrier();
      // Ranks share the device; the threads decide how their peaks meet.
      const size_t peak = mesh.world_size() > 1 ? 0 : emulation::device_bytes_peak();
      const Use now{peak, emulation::device_bytes_in_use()};
      mesh.control().barrier();
      if (step == 2) third = now;
      if (step > 2) {
        ASSERT_EQ(now.peak, third.peak) << "step " << step;
        ASSERT_EQ(now.after, third.after) << "step " << step;
      }
    }
  };
  if (c.shards > 1) return run_there({.shard = c.shards}, train);
  train(*lone_mesh());
}

using Choice = dp::RecordingChoice;
INSTANTIATE_TEST_SUITE_P(Gpt2, SteadyMemory,
                         testing::Values(Case{"hold", Choice::kHold, false},             //
                                         Case{"replay", Choice::kReplay, false, 30, 2},  //
                                         Case{"replay_hundreds_of_steps", Choice::kReplay, false, 300, 2},
                                         Case{"accumulate", Choice::kReplay, true},  //
                                         Case{"two_ranks", Choice::kReplay, false, 10, 1, 2}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ghostshard::tests
