// A logical batch is one batch, however it is cut: M microbatches give the same release as one, with noise once.
#include <gtest/gtest.h>

#include "dp/run/nonprivate.h"
#include "tests/gpt2/small_world.h"

namespace ghostshard::tests {
namespace {

// The slices of all trainable groups (one rank: the whole gradient), as one vector.
at::Tensor flat_of(fsdp::ShardedModel& model, const fsdp::ShardBuffers& slices) {
  std::vector<at::Tensor> parts;
  for (const auto& group : model.groups()) {
    if (group->trainable()) parts.push_back(slices.shard(*group).cpu().to(at::kDouble));
  }
  return at::cat(parts);
}

struct World {
  explicit World(const gpt2::ModelOptions& options) : model(*mesh, config, {}, options) {
    randomize(model, 3);
    const auto path = write_texts(folder.path() / "texts.safetensors", awkward_texts(config));
    data.emplace(path, config.vocab_size, config.n_positions);
  }
  std::unique_ptr<fsdp::Mesh> mesh = lone_mesh();
  gpt2::Config config = small_config(/*tied=*/true);
  gpt2::Gpt2 model;
  TemporaryFolder folder;
  std::optional<gpt2::Dataset> data;
};

at::Tensor private_gradient(const gpt2::ModelOptions& options, dp::RecordingChoice recording, int64_t microbatch,
                            const accountant::NoiseMultiplier& noise) {
  World w(options);
  const auto plan = dp::DpPlan::make({.units = w.data->units(),
                                      .expected_batch = w.data->units(),
                                      .steps = 1,
                                      .clip_norm = accountant::ClipNorm(6.0),
                                      .noise_multiplier = noise});
  const auto key = key_of(1);
  auto clipper = plan.clipper(w.model.parameters(), {.recording = recording});
  auto mechanism = plan.mechanism(w.model.parameters(), key, nullptr);
  const auto batches = plan.sampler(key, 0, 1).draw_local({0}, microbatch, w.data->row_counts());
  const auto gradient = mechanism.release(clipped_batch(w.model, clipper, *w.data, batches, mechanism, {0}), {0});
  return flat_of(w.model.parameters(), gradient.slices());
}

at::Tensor plain_gradient(const gpt2::ModelOptions& options, int64_t microbatch) {
  World w(options);
  dp::PlainAccumulator accumulator(w.model.parameters(), static_cast<double>(w.data->units()));
  const auto key = key_of(1);
  const auto sampler = dp::nonprivate_sampler(key, w.data->units(), w.data->units(), 0, 1);
  accumulator.begin();
  const auto resident = w.model.resident();
  for (const auto& units : sampler.draw_local({0}, microbatch, w.data->row_counts())) {
    w.model.summed_unit_losses(w.data->batch(units), accumulator.recorder()).backward();
  }
  return flat_of(w.model.parameters(), accumulator.reduce());
}

struct Case {
  const char* name;
  dp::RecordingChoice recording = dp::RecordingChoice::kAutomatic;
  gpt2::ModelOptions options = {};
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
const Case kCases[] = {
    {"hold", dp::RecordingChoice::kHold},
    {"replay", dp::RecordingChoice::kReplay},
    {"checkpointed", dp::RecordingChoice::kAutomatic, {.activation_checkpointing = true}},
    {"lora", dp::RecordingChoice::kAutomatic, {.lora = {.rank = 2, .alpha = 2, .targets = {"*"}}}},
};

class Accumulation : public ::testing::TestWithParam<Case> {};

TEST_P(Accumulation, GivesWhatOneMicrobatchGives) {
  const Case& c = GetParam();
  const at::Tensor sum = private_gradient(c.options, c.recording, 100, kNoNoise);
  const accountant::NoiseMultiplier noise(1.0);
  const at::Tensor one = private_gradient(c.options, c.recording, 100, noise);
  ASSERT_GT((one - sum).norm().item<double>(), sum.norm().item<double>()) << "noise must show";
  const at::Tensor plain = plain_gradient(c.options, 100);
  for (const int64_t microbatch : {1, 3, 5, 11}) {
    // Each is within 1e-5 of the float64 oracle (clipped_sum_test.cpp): products sum in an order of their own for
    // each shape. Noise put in twice, or in parts, would be as large as the sum itself.
    const at::Tensor many = private_gradient(c.options, c.recording, microbatch, noise);
    EXPECT_LT((many - one).norm().item<double>(), 2e-5 * sum.norm().item<double>()) << microbatch << " at a time";
    EXPECT_LT((plain_gradient(c.options, microbatch) - plain).norm().item<double>(), 2e-5 * plain.norm().item<double>())
        << microbatch << " at a time, without privacy";
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Accumulation, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

// The bound on a unit's influence rests on this: its gradient is a function of the unit alone, whichever units share
// its microbatch. In bfloat16, whose roundings are large, to the bit. In float32 the matrix products choose the order
// of their sums by the number of rows, within the tolerance of the oracle (clipped_sum_test.cpp). The companions here
// have no loss, so that they add exactly nothing of their own.
class Company : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(Company, DoesNotChangeAUnitsContribution) {
  const gpt2::Config config = small_config(/*tied=*/true);
  std::vector<Text> texts = awkward_texts(config);
  constexpr int64_t kWith = 6;  // the unit looked at
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i != kWith) std::fill(texts[i].mask.begin(), texts[i].mask.end(), 0);
  }
  const TemporaryFolder folder;
  const auto path = write_texts(folder.path() / "texts.safetensors", texts);
  const auto released = [&](const std::vector<int64_t>& units) {
    const auto mesh = lone_mesh();
    gpt2::Gpt2 model(*mesh, config, {}, {.compute_dtype = GetParam()});
    randomize(model, 3);
    const gpt2::Dataset data(path, config.vocab_size, config.n_positions);
    const auto plan = dp::DpPlan::make({.units = data.units(),
                                        .expected_batch = data.units(),
                                        .steps = 1,
                                        .clip_norm = accountant::ClipNorm(1.0),
                                        .noise_multiplier = kNoNoise});
    const auto key = key_of(1);
    auto clipper = plan.clipper(model.parameters(), {.recording = dp::RecordingChoice::kHold});
    auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
    const auto gradient = mechanism.release(clipped_batch(model, clipper, data, {units}, mechanism, {0}), {0});
    return flat_of(model.parameters(), gradient.slices());
  };
  const at::Tensor alone = released({kWith});
  EXPECT_GT(alone.norm().item<double>(), 0.0);
  const double tolerance = GetParam() == at::kBFloat16 ? 0.0 : 1e-5 * alone.norm().item<double>();
  const auto change = [&](const std::vector<int64_t>& units) {
    return (released(units) - alone).norm().item<double>();
  };
  EXPECT_LE(change({2, kWith}), tolerance) << "beside a longer one";
  EXPECT_LE(change({kWith, 3, 1}), tolerance) << "beside shorter ones";
  EXPECT_LE(change({0, 1, 2, 3, 4, 5, kWith, 7, 8, 9, 10, 11}), tolerance) << "among all";
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Company, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& param) { return std::string(c10::toString(param.param)); });

}  // namespace
}  // namespace ghostshard::tests
