// How often a private step makes the host wait for its device: for the fingerprints of two passes, and never for
// anything else. (docs/cuda.md names them.)
#include <gtest/gtest.h>

#include "tests/emulation/device/device.h"
#include "tests/gpt2/small_world.h"

namespace ghostshard::tests {
namespace {

struct Case {
  const char* name;
  dp::RecordingChoice recording;
  bool two_pass;
  bool tied;
  int64_t waits_of_a_microbatch;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class HostWaits : public testing::TestWithParam<Case> {};

TEST_P(HostWaits, AreForFingerprintsAlone) {
  const Case& c = GetParam();
  const auto mesh = lone_mesh();
  const gpt2::Config config = small_config(c.tied);
  gpt2::Gpt2 model(*mesh, config, {});
  randomize(model, 3);
  const TemporaryFolder folder;
  const gpt2::Dataset data(write_texts(folder.path() / "texts.safetensors", awkward_texts(config)), config.vocab_size,
                           config.n_positions);
  const auto plan = dp::DpPlan::make({.units = data.units(),
                                      .expected_batch = data.units(),
                                      .steps = 3,
                                      .clip_norm = accountant::ClipNorm(3.0),
                                      .noise_multiplier = accountant::NoiseMultiplier(1.0)});
  dp::ClipperOptions options{.recording = c.recording};
  if (c.two_pass) {
    options.planned_recording.assign(model.parameters().parameters().size(), kernels::Recording::kTwoPass);
    options.planned_recording[model.parameters().parameter("transformer.wte.weight").id()] =
        kernels::Recording::kReplay;
  }
  const auto key = key_of(1);
  auto clipper = plan.clipper(model.parameters(), options);
  auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
  dp::PrivateOptimizer optimizer(fsdp::make_adamw(model.parameters(), {.weight_decay = 0.1}));
  for (int64_t step = 0; step < 2; ++step) {
    const auto batches = plan.sampler(key, 0, 1).draw_local({step}, 6, data.row_counts());
    const int64_t before = emulation::host_waits();
    auto sum = clipped_batch(model, clipper, data, batches, mechanism, {step});
    optimizer.step(mechanism.release(std::move(sum), {step}), 1e-3);
    EXPECT_EQ(emulation::host_waits() - before, c.waits_of_a_microbatch * static_cast<int64_t>(batches.size()));
  }
}

using Choice = dp::RecordingChoice;
INSTANTIATE_TEST_SUITE_P(Gpt2, HostWaits,
                         testing::Values(Case{"tied_replay", Choice::kReplay, false, true, 0},
                                         Case{"untied_replay", Choice::kReplay, false, false, 0},
                                         Case{"tied_hold", Choice::kHold, false, true, 0},
                                         // Three blocks of four matrices, a fingerprint each in both passes.
                                         Case{"two_pass", Choice::kAutomatic, true, true, 2 * 3 * 4}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ghostshard::tests
