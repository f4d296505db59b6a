// DESIGN 5.1: the sum over texts of clipped gradients equals the float64 oracle, one text at a time.
#include <gtest/gtest.h>

#include "tests/dist/local_ranks.h"
#include "tests/gpt2/small_world.h"

namespace ghostshard::tests {
namespace {

struct Case {
  const char* name;
  bool tied = true;
  std::vector<std::string> freeze;
  dp::RecordingChoice recording = dp::RecordingChoice::kAutomatic;
  int64_t microbatch = 100;
  const char* mesh = "1x1x1";
  double clip_norm = 6.0;  // about half of the texts are above
  int64_t heads = 3;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

using Choice = dp::RecordingChoice;

const Case kCases[] = {
    {.name = "tied_automatic"},
    {.name = "tied_hold", .recording = Choice::kHold},
    {.name = "tied_replay", .recording = Choice::kReplay},
    {.name = "untied_hold", .tied = false, .recording = Choice::kHold},
    {.name = "untied_replay", .tied = false, .recording = Choice::kReplay},
    {.name = "accumulation_hold", .recording = Choice::kHold, .microbatch = 3},
    {.name = "accumulation_replay", .recording = Choice::kReplay, .microbatch = 3},
    {.name = "one_text_at_a_time", .microbatch = 1},
    {.name = "embeddings_frozen_tied_replay", .freeze = {"transformer.w*"}, .recording = Choice::kReplay},
    {.name = "embeddings_frozen_untied_hold", .tied = false, .freeze = {"transformer.w*"}, .recording = Choice::kHold},
    {.name = "first_blocks_frozen", .freeze = {"transformer.w*", "transformer.h.0.*", "transformer.h.1.*"}},
    {.name = "only_biases", .freeze = {"*.weight"}},
    {.name = "only_head", .tied = false, .freeze = {"transformer.*"}},
    {.name = "only_embedding", .tied = false, .freeze = {"transformer.h.*", "transformer.ln_f.*", "lm_head.*"}},
    {.name = "middle_block_frozen", .freeze = {"transformer.h.1.*"}},
    {.name = "nothing_clips", .clip_norm = 1e4},
    {.name = "everything_clips", .clip_norm = 1e-3},
    {.name = "two_ranks_hold", .recording = Choice::kHold, .microbatch = 2, .mesh = "1x2x1"},
    {.name = "two_ranks_replay", .recording = Choice::kReplay, .microbatch = 2, .mesh = "1x2x1"},
    {.name = "two_ranks_untied", .tied = false, .microbatch = 4, .mesh = "1x2x1"},
    {.name = "two_ranks_frozen_parts",
     .freeze = {"transformer.w*", "transformer.h.1.*"},
     .microbatch = 4,
     .mesh = "1x2x1"},
    {.name = "two_replicas", .microbatch = 2, .mesh = "2x1x1"},
    {.name = "two_replicas_of_two", .microbatch = 2, .mesh = "2x2x1"},
    {.name = "eight_ranks", .microbatch = 2, .mesh = "1x8x1"},
    {.name = "two_model_ranks_hold", .recording = Choice::kHold, .microbatch = 5, .mesh = "1x1x2", .heads = 4},
    {.name = "two_model_ranks_replay", .recording = Choice::kReplay, .microbatch = 5, .mesh = "1x1x2", .heads = 4},
    {.name = "two_model_ranks_untied", .tied = false, .mesh = "1x1x2", .heads = 4},
    {.name = "four_model_ranks", .mesh = "1x1x4", .heads = 4},
    {.name = "shard_and_model", .microbatch = 2, .mesh = "1x2x2", .heads = 4},
    {.name = "all_three_axes", .microbatch = 2, .mesh = "2x2x2", .heads = 4},
    {.name = "model_ranks_only_whole_parameters",
     .freeze = {"*.c_attn.*", "*.c_fc.*", "*.c_proj.weight"},
     .mesh = "1x1x2",
     .heads = 4},
    {.name = "model_ranks_only_cut_parameters",
     .freeze = {"*.ln_*", "transformer.w*", "*.c_proj.bias"},
     .mesh = "1x1x2",
     .heads = 4},
    {.name = "model_ranks_first_blocks_frozen",
     .freeze = {"transformer.w*", "transformer.h.0.*", "transformer.h.1.*"},
     .mesh = "1x2x2",
     .heads = 4},
    {.name = "model_ranks_everything_clips", .mesh = "1x2x2", .clip_norm = 1e-3, .heads = 4},
    {.name = "four_ranks", .microbatch = 2, .mesh = "1x4x1"},
};

class ClippedSum : public ::testing::TestWithParam<Case> {};

TEST_P(ClippedSum, EqualsTheFloat64Oracle) {
  const Case& c = GetParam();
  const gpt2::Config config = small_config(c.tied, c.heads);
  const auto texts = awkward_texts(config);
  const TemporaryFolder folder;
  const auto path = write_texts(folder.path() / "texts.safetensors", texts);
  std::mutex results;
  Distance total;
  run_mesh(fsdp::MeshShape::parse(c.mesh), [&](fsdp::Mesh& mesh) {
    gpt2::Gpt2 model(mesh, config, c.freeze);
    randomize(model, 3);
    const gpt2::Dataset data(path, config.vocab_size, config.n_positions);
    std::vector<std::string> frozen;
    for (const auto& parameter : model.parameters().parameters()) {
      if (!parameter->trainable()) frozen.push_back(parameter->name());
    }
    const auto n = data.units();
    const auto plan = dp::DpPlan::make({.units = n,
                                        .expected_batch = n,  // q = 1: every text, every step
                                        .steps = 1,
                                        .clip_norm = accountant::ClipNorm(c.clip_norm),
                                        .noise_multiplier = kNoNoise});
    const auto key = test_key();
    auto clipper = plan.clipper(model.parameters(), {.recording = c.recording});
    auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
    const auto sampler = plan.sampler(key, mesh.data_rank(), mesh.data_size());
    auto sum = clipped_batch(model, clipper, data, sampler.draw_local({0}, c.microbatch, data.row_counts()));
    const auto gradient = mechanism.release(std::move(sum), {0});

    const ReferenceGpt2 reference(config, whole_weights(model), frozen);
    const Gradients expected = clipped_sum(reference, texts, c.clip_norm);
    const Distance d = compare_slices(model.parameters(), gradient.slices(), static_cast<double>(n), expected);
    const std::lock_guard lock(results);
    total.squared_difference += d.squared_difference;
    total.squared_norm += d.squared_norm;
  });
  // Forward and backward chain about 80 float32 operations here, each a sum of at most 96 products with a rounding of
  // about sqrt(96)·2^-24 = 6e-7; in quadrature sqrt(80)·6e-7 = 5e-6, and twice that for luck.
  ASSERT_GT(total.squared_norm, 0.0);
  EXPECT_LT(std::sqrt(total.squared_difference / total.squared_norm), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Gpt2, ClippedSum, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace ghostshard::tests
