// Weights that travel in codes: one text moves the released sum by at most the clip norm, whatever recorded it, and a
// step sends what its plan counts. (That sums are those of the codes' values: clipped_sum_test.cpp.)
#include <gtest/gtest.h>

#include <mutex>

#include "dp/gathering/weight_code.h"
#include "examples/gpt2/step_model.h"
#include "tests/gpt2/small_world.h"
#include "tests/support/ranks.h"
#include "tests/support/recording_mesh.h"

namespace ghostshard::tests {
namespace {

using kernels::WeightCode;

constexpr double kClipNorm = 2;  // below the norms of all texts that have a loss

struct CodedCase {
  const char* name;
  WeightCode code;
  dp::RecordingChoice recording;
  at::ScalarType dtype = at::kFloat;
};
void PrintTo(const CodedCase& c, std::ostream* out) { *out << c.name; }
class CodedSensitivity : public ::testing::TestWithParam<CodedCase> {
 protected:
  // This rank's slices of the released sum, in float64, one after the other.
  static at::Tensor released(fsdp::Mesh& mesh, const std::filesystem::path& texts) {
    const gpt2::Config config = small_config(false);
    gpt2::Gpt2 model(
        mesh, config, {},
        {.compute_dtype = GetParam().dtype, .gather_code = dp::weight_code(GetParam().code, /*least_elements=*/100)});
    randomize(model, 3);
    const gpt2::Dataset data(texts, config.vocab_size, config.n_positions);
    const auto n = data.units();
    const auto plan = dp::DpPlan::make({.units = n,
                                        .expected_batch = n,
                                        .steps = 1000,
                                        .clip_norm = accountant::ClipNorm(kClipNorm),
                                        .noise_multiplier = kNoNoise});
    const auto key = key_of(1);
    auto clipper = plan.clipper(model.parameters(), {.recording = GetParam().recording});
    auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
    const auto batches =
        plan.sampler(key, mesh.data_rank(), mesh.data_size()).draw_local({0}, /*microbatch=*/4, data.row_counts());
    const auto gradient = mechanism.release(clipped_batch(model, clipper, data, batches, mechanism, {0}), {0});
    std::vector<at::Tensor> slices;
    for (const auto& group : model.parameters().groups()) {
      if (!group->trainable()) continue;
      for (const auto& range : group->owned()) {
        slices.push_back(gradient.slices().shard(*group).narrow(0, range.shard_offset, range.count).to(at::kDouble));
      }
    }
    return at::cat(slices).mul(static_cast<double>(n));
  }
};
INSTANTIATE_TEST_SUITE_P(, CodedSensitivity,
                         ::testing::Values(CodedCase{"int8_hold", WeightCode::kInt8, dp::RecordingChoice::kHold},
                                           CodedCase{"int8_replay", WeightCode::kInt8, dp::RecordingChoice::kReplay},
                                           CodedCase{"int8_two_pass", WeightCode::kInt8, dp::RecordingChoice::kTwoPass},
                                           CodedCase{"float8_two_pass", WeightCode::kFloat8,
                                                     dp::RecordingChoice::kTwoPass},
                                           CodedCase{"int8_bfloat16_replay", WeightCode::kInt8,
                                                     dp::RecordingChoice::kReplay, at::kBFloat16}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(CodedSensitivity, OneTextMovesTheSumByTheClipNormAndNoMore) {
  const auto texts = awkward_texts(small_config(false));
  const TemporaryFolder folder;
  const auto all = write_texts(folder.path() / "all.safetensors", texts);
  for (const size_t one : {2, 6}) {
    auto others = texts;
    others[one].tokens.resize(1);  // an empty text: nothing to predict
    others[one].mask.resize(1);
    const auto rest = write_texts(folder.path() / "others.safetensors", others);
    std::mutex results;
    double squared = 0;
    run_ranks(2, [&](fsdp::Mesh& mesh) {
      const at::Tensor moved = released(mesh, all) - released(mesh, rest);
      const std::lock_guard lock(results);
      squared += moved.square().sum().item<double>();
    });
    const double slack = dp::DpPlan::rounding_slack(static_cast<int64_t>(texts.size()));
    EXPECT_LE(std::sqrt(squared), kClipNorm * (1 + slack)) << "text " << one;
    // Norms are bounded from above: by at most 1e-4 more than they are in float32, more in 16 bits.
    EXPECT_GE(std::sqrt(squared), kClipNorm * (GetParam().dtype == at::kFloat ? 0.999 : 0.9)) << "the text was clipped";
  }
}

TEST(CodedWeights, SendWhatThePlanCounts) {
  gpt2::Config config = small_config(true, /*heads=*/4);
  config.n_embd = 128;
  config.n_inner = 512;
  config.vocab_size = 1000;
  config.n_positions = 64;  // or positions are too few to be coded
  const gpt2::ModelOptions options{.compute_dtype = at::kBFloat16, .gather_code = dp::weight_code(WeightCode::kInt8)};
  const auto planned = gpt2::planned_blocks(config, gpt2::block_specs(config, {}, options), options, 1);
  double whole = 0;
  for (const auto& block : planned) whole += block.message_bytes;
  for (const int64_t ranks : {2, 8}) {
    RecordingMesh mesh({.shard = ranks}, 0), narrow_mesh({.shard = ranks}, 0);
    gpt2::Gpt2 model(mesh, config, {}, options), narrow(narrow_mesh, config, {}, {.compute_dtype = at::kBFloat16});
    for (auto* each : {&model, &narrow}) {
      auto& parameters = each->parameters();
      parameters.weights_changed();
      for (int64_t block = 0; block < parameters.block_count(); ++block) const fsdp::Lease lease(parameters, block);
    }
    const auto sent = static_cast<double>(mesh.bytes_sent("gather"));
    EXPECT_LE(sent, 0.52 * static_cast<double>(narrow_mesh.bytes_sent("gather"))) << ranks << " ranks";
    // Padding between ranks is not in the plan: here it is below 5 %.
    const double counted = whole * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
    EXPECT_GE(sent, 0.999 * counted) << ranks << " ranks";
    EXPECT_LE(sent, 1.05 * counted) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace ghostshard::tests
