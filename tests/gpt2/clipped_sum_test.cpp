// DESIGN 5.1: the sum over texts of clipped gradients equals the float64 oracle, one text at a time.
#include <gtest/gtest.h>

#include "tests/gpt2/small_world.h"
#include "tests/support/run_on_device.h"

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
  gpt2::ModelOptions options = {};
  std::vector<int64_t> texts_per_unit = {};
  bool streamed = false;  // with every microbatch, sums never stand whole
  bool two_pass = false;  // every matrix but a tied one
  dp::Clipping clipping = dp::Clipping::kFlat;
  int64_t head_tile = 0;  // the head is recomputed by tiles of so many bytes
};

gpt2::ModelOptions lora(std::vector<std::string> targets, int64_t rank = 3) {
  return {.lora = {.rank = rank, .alpha = 2.0 * static_cast<double>(rank), .targets = std::move(targets)}};
}
gpt2::ModelOptions in_bfloat16(gpt2::ModelOptions options = {}) {
  options.compute_dtype = at::kBFloat16;
  return options;
}
gpt2::ModelOptions checkpointed(gpt2::ModelOptions options = {}) {
  options.activation_checkpointing = true;
  return options;
}

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
    {.name = "one_rank_streamed", .microbatch = 3, .streamed = true},
    {.name = "two_ranks_streamed", .microbatch = 2, .mesh = "1x2x1", .streamed = true},
    {.name = "two_replicas_of_two_streamed", .microbatch = 2, .mesh = "2x2x1", .streamed = true},
    {.name = "two_ranks_kept_gathered",
     .microbatch = 2,
     .mesh = "1x2x1",
     .options = {.residency = std::vector<fsdp::Residency>(5, fsdp::Residency::kKeep)}},
    {.name = "two_pass_tied", .microbatch = 3, .two_pass = true},
    {.name = "two_pass_untied", .tied = false, .microbatch = 3, .two_pass = true},
    {.name = "two_pass_frozen_parts", .freeze = {"transformer.w*", "transformer.h.1.*"}, .two_pass = true},
    {.name = "two_pass_recomputing", .options = checkpointed(), .two_pass = true},
    {.name = "two_pass_lora", .clip_norm = 3, .options = lora({"*"}), .two_pass = true},
    {.name = "two_pass_two_ranks", .microbatch = 2, .mesh = "1x2x1", .two_pass = true},
    {.name = "recomputed_head_tied", .head_tile = 1200},
    {.name = "recomputed_head_untied", .tied = false, .microbatch = 3, .head_tile = 1200},
    {.name = "recomputed_head_output_by_output", .head_tile = 1},
    {.name = "recomputed_head_in_one_tile", .microbatch = 1, .head_tile = int64_t{1} << 20},
    {.name = "recomputed_head_two_pass", .microbatch = 3, .two_pass = true, .head_tile = 1200},
    {.name = "recomputed_head_untied_two_pass", .tied = false, .two_pass = true, .head_tile = 1200},
    {.name = "recomputed_head_streamed", .microbatch = 2, .mesh = "1x2x1", .streamed = true, .head_tile = 600},
    {.name = "recomputed_head_per_layer", .microbatch = 3, .clipping = dp::Clipping::kPerLayer, .head_tile = 1200},
    {.name = "recomputed_head_all_three_axes", .microbatch = 2, .mesh = "2x2x2", .heads = 4, .head_tile = 600},
    {.name = "recomputed_head_everything_clips", .clip_norm = 1e-3, .head_tile = 1200},
    {.name = "recomputed_head_only", .tied = false, .freeze = {"transformer.*"}, .head_tile = 1200},
    {.name = "recomputed_head_embeddings_frozen", .freeze = {"transformer.w*"}, .head_tile = 1200},
    {.name = "two_pass_all_three_axes", .microbatch = 2, .mesh = "2x2x2", .heads = 4, .two_pass = true},
    {.name = "per_layer_hold", .recording = Choice::kHold, .clipping = dp::Clipping::kPerLayer},
    {.name = "per_layer_untied_replay",
     .tied = false,
     .recording = Choice::kReplay,
     .microbatch = 3,
     .clipping = dp::Clipping::kPerLayer},
    {.name = "per_layer_frozen_parts",
     .freeze = {"transformer.w*", "transformer.h.1.*"},
     .clipping = dp::Clipping::kPerLayer},
    {.name = "per_layer_two_pass", .two_pass = true, .clipping = dp::Clipping::kPerLayer},
    {.name = "per_layer_two_ranks_streamed",
     .microbatch = 2,
     .mesh = "1x2x1",
     .streamed = true,
     .clipping = dp::Clipping::kPerLayer},
    {.name = "per_layer_all_three_axes",
     .microbatch = 2,
     .mesh = "2x2x2",
     .heads = 4,
     .clipping = dp::Clipping::kPerLayer},
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
    {.name = "model_ranks_recomputing", .microbatch = 2, .mesh = "1x2x2", .heads = 4, .options = checkpointed()},
    {.name = "replicas_in_bfloat16", .microbatch = 2, .mesh = "2x2x1", .options = in_bfloat16()},
    {.name = "model_ranks_everything_clips", .mesh = "1x2x2", .clip_norm = 1e-3, .heads = 4},
    {.name = "four_ranks", .microbatch = 2, .mesh = "1x4x1"},
    {.name = "lora_hold", .recording = Choice::kHold, .clip_norm = 3, .options = lora({"attn.c_attn"})},
    {.name = "lora_replay", .recording = Choice::kReplay, .clip_norm = 3, .options = lora({"attn.c_attn"})},
    {.name = "lora_everywhere", .microbatch = 3, .options = lora({"attn.*", "mlp.*"})},
    {.name = "lora_of_one_block", .clip_norm = 1, .options = lora({"transformer.h.1.mlp.c_fc"}, 1)},
    {.name = "lora_only_up", .freeze = {"*lora_A*"}, .clip_norm = 3, .options = lora({"*"})},
    {.name = "lora_two_ranks", .microbatch = 2, .mesh = "1x2x1", .options = lora({"attn.c_proj", "mlp.c_proj"})},
    {.name = "checkpointed_hold", .recording = Choice::kHold, .options = checkpointed()},
    {.name = "checkpointed_replay", .recording = Choice::kReplay, .microbatch = 3, .options = checkpointed()},
    {.name = "checkpointed_frozen_parts", .freeze = {"transformer.w*", "transformer.h.1.*"}, .options = checkpointed()},
    {.name = "checkpointed_lora", .microbatch = 3, .clip_norm = 3, .options = checkpointed(lora({"*"}))},
    {.name = "checkpointed_two_ranks", .microbatch = 2, .mesh = "1x2x1", .options = checkpointed()},
};
const std::vector<int64_t> kUsers = {3, 1, 2, 4, 2};
const Case kUserCases[] = {
    {.name = "users_recomputed_head", .clip_norm = 3, .texts_per_unit = kUsers, .head_tile = 1200},
    {.name = "users_hold", .recording = Choice::kHold, .clip_norm = 3, .texts_per_unit = kUsers},
    {.name = "users_replay", .recording = Choice::kReplay, .microbatch = 2, .clip_norm = 3, .texts_per_unit = kUsers},
    {.name = "users_untied", .tied = false, .clip_norm = 3, .texts_per_unit = kUsers},
    {.name = "users_two_ranks", .microbatch = 2, .mesh = "1x2x1", .clip_norm = 3, .texts_per_unit = kUsers},
    {.name = "users_checkpointed", .clip_norm = 3, .options = checkpointed(), .texts_per_unit = kUsers},
    {.name = "one_user", .clip_norm = 1, .texts_per_unit = {12}},
};
const Case kBfloat16Cases[] = {
    {.name = "bfloat16_hold", .recording = Choice::kHold, .options = in_bfloat16()},
    {.name = "bfloat16_replay", .recording = Choice::kReplay, .microbatch = 3, .options = in_bfloat16()},
    {.name = "bfloat16_recomputed_head", .options = in_bfloat16(), .head_tile = 1200},
    {.name = "bfloat16_recomputed_head_untied", .tied = false, .options = in_bfloat16(), .head_tile = 1200},
    {.name = "bfloat16_untied", .tied = false, .options = in_bfloat16()},
    {.name = "bfloat16_two_ranks", .microbatch = 2, .mesh = "1x2x1", .options = in_bfloat16()},
    {.name = "bfloat16_checkpointed", .options = in_bfloat16(checkpointed())},
    {.name = "bfloat16_lora", .clip_norm = 3, .options = in_bfloat16(lora({"*"}))},
    {.name = "bfloat16_users", .clip_norm = 3, .options = in_bfloat16(), .texts_per_unit = kUsers},
};

dp::ClipperOptions clipper_options(const Case& c, const fsdp::ShardedModel& model) {
  dp::ClipperOptions options{.recording = c.recording};
  if (c.streamed) options.streamed.assign(model.groups().size(), true);
  if (c.two_pass) {
    options.planned_recording.assign(model.parameters().size(), kernels::Recording::kTwoPass);
    if (c.tied) options.planned_recording[model.parameter("transformer.wte.weight").id()] = kernels::Recording::kReplay;
  }
  if (c.head_tile > 0) {
    options.planned_recording.resize(model.parameters().size());
    const char* head = c.tied ? "transformer.wte.weight" : "lm_head.weight";
    options.planned_recording[model.parameter(head).id()] = kernels::Recording::kRecompute;
  }
  return options;
}

class ClippedSum : public ::testing::TestWithParam<Case> {};

TEST_P(ClippedSum, EqualsTheFloat64Oracle) {
  const Case& c = GetParam();
  const gpt2::Config config = small_config(c.tied, c.heads);
  const auto texts = awkward_texts(config);
  const TemporaryFolder folder;
  const auto path = write_texts(folder.path() / "texts.safetensors", texts, c.texts_per_unit);
  std::mutex results;
  Distance total;
  run_there(fsdp::MeshShape::parse(c.mesh), [&](fsdp::Mesh& mesh) {
    gpt2::ModelOptions model_options = c.options;
    if (c.head_tile > 0) model_options.head_tile_bytes = c.head_tile;
    gpt2::Gpt2 model(mesh, config, c.freeze, model_options);
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
                                        .clipping = c.clipping,
                                        .noise_multiplier = kNoNoise});
    const auto key = key_of(1);
    auto clipper = plan.clipper(model.parameters(), clipper_options(c, model.parameters()));
    auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
    const auto sampler = plan.sampler(key, mesh.data_rank(), mesh.data_size());
    auto sum =
        clipped_batch(model, clipper, data, sampler.draw_local({0}, c.microbatch, data.row_counts()), mechanism, {0});
    const auto gradient = mechanism.release(std::move(sum), {0});

    const double scale = c.options.lora.enabled() ? c.options.lora.scale() : 0;
    const ReferenceGpt2 reference(config, whole_weights(model), frozen, scale);
    std::map<std::string, int64_t> layers;
    if (c.clipping == dp::Clipping::kPerLayer) {
      for (const auto& parameter : model.parameters().parameters()) {
        if (parameter->trainable()) layers[parameter->name()] = parameter->group().index();
      }
    }
    const Gradients expected = clipped_sum(reference, units_of(texts, c.texts_per_unit), c.clip_norm, layers);
    const Distance d = compare_slices(model.parameters(), gradient.slices(), static_cast<double>(n), expected);
    const std::lock_guard lock(results);
    total.squared_difference += d.squared_difference;
    total.squared_norm += d.squared_norm;
  });
  // Forward and backward chain about 80 float32 operations here, each a sum of at most 96 products with a rounding of
  // about sqrt(96)·2^-24 = 6e-7; in quadrature sqrt(80)·6e-7 = 5e-6, and twice that for luck.
  // In bfloat16 each of these 80 rounds its result, at 2^-9 (sums are float32): sqrt(80)·2^-9 = 0.017, and twice that.
  // A replayed matrix's norm is an upper bound: up to gamma(rows)·(sum of |a||g|)/‖G‖ above, which shows if a unit
  // has many rows. Users here have up to 60, of about ten times the mass of their sum: 60·2^-24·10 = 4e-5.
  ASSERT_GT(total.squared_norm, 0.0);
  double tolerance = c.texts_per_unit.empty() ? 1e-5 : 4e-5;
  if (c.options.compute_dtype == at::kBFloat16) tolerance = 0.035;
  EXPECT_LT(std::sqrt(total.squared_difference / total.squared_norm), tolerance);
}

const auto name_of = [](const auto& param) { return std::string(param.param.name); };
INSTANTIATE_TEST_SUITE_P(Gpt2, ClippedSum, ::testing::ValuesIn(kCases), name_of);
INSTANTIATE_TEST_SUITE_P(Users, ClippedSum, ::testing::ValuesIn(kUserCases), name_of);
INSTANTIATE_TEST_SUITE_P(Bfloat16, ClippedSum, ::testing::ValuesIn(kBfloat16Cases), name_of);

}  // namespace
}  // namespace ghostshard::tests
