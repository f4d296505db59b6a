// docs/guarantee.md, fact 2: the sum over texts of clipped gradients equals the float64 oracle, one text at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "dp/gathering/weight_code.h"
#include "tests/gpt2/small_world.h"
#include "tests/support/pairwise.h"
#include "tests/support/run_on_device.h"

namespace ghostshard::tests {
namespace {

struct Case {
  std::string name;
  bool tied = true;
  std::vector<std::string> freeze;
  dp::RecordingChoice recording = dp::RecordingChoice::kAutomatic;
  int64_t microbatch = 100;
  std::string mesh = "1x1x1";
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

const std::vector<int64_t> kUsers = {3, 1, 2, 4, 2};
constexpr int64_t kLeastCoded = 100;  // elements: every matrix but the adapters of one column
constexpr int64_t kSomeBytes = 1200;  // cuts the small model's head into tiles, the last one smaller

// What may be chosen freely for a run. Any two of these values meet in some case.
const Factors& factors() {
  static const Factors made = [] {
    Factors f({{"head", {"", "untied"}},
               {"recording", {"", "hold", "replay", "two_pass"}},
               {"tile", {"", "head_by_tiles", "head_by_outputs", "head_in_one_tile"}},
               {"microbatch", {"", "by_three", "by_one"}},
               {"mesh", {"", "1x2x1", "2x2x1", "1x1x2", "2x2x2"}},
               {"clip", {"", "all_clip", "none_clip"}},
               {"freeze", {"", "no_embeddings", "no_middle_block", "no_first_blocks", "only_biases"}},
               {"lora", {"", "lora_some", "lora_all"}},
               {"activations", {"", "checkpointed"}},
               {"dtype", {"", "bfloat16"}},
               {"gather", {"", "int8", "float8"}},
               {"units", {"", "users"}},
               {"reduction", {"", "streamed", "kept_gathered"}},
               {"clipping", {"", "per_layer"}}});
    const auto forbid = [&f](std::pair<const char*, const char*> first, std::pair<const char*, const char*> second,
                             const char* why) {
      f.forbid(f.find(first.first, first.second), f.find(second.first, second.second), why);
    };
    for (const char* tile : {"head_by_tiles", "head_by_outputs", "head_in_one_tile"}) {
      forbid({"tile", tile}, {"freeze", "only_biases"}, "the head is frozen");
      for (const char* lora : {"lora_some", "lora_all"}) forbid({"tile", tile}, {"lora", lora}, "the head is frozen");
    }
    for (const char* freeze : {"no_embeddings", "no_middle_block", "no_first_blocks", "only_biases"}) {
      for (const char* lora : {"lora_some", "lora_all"}) {
        forbid({"freeze", freeze}, {"lora", lora}, "LoRA trains its own matrices alone");
      }
    }
    for (const char* mesh : {"1x1x2", "2x2x2"}) {
      for (const char* lora : {"lora_some", "lora_all"}) forbid({"mesh", mesh}, {"lora", lora}, "refused");
      forbid({"mesh", mesh}, {"dtype", "bfloat16"}, "refused");
      for (const char* code : {"int8", "float8"}) forbid({"mesh", mesh}, {"gather", code}, "refused");
    }
    forbid({"freeze", "no_embeddings"}, {"head", ""}, "a tied head is frozen too: a case of its own below");
    return f;
  }();
  return made;
}

Case case_of(const std::vector<size_t>& row) {
  const auto is = [&row](const char* factor, const char* value) {
    const FactorValue wanted = factors().find(factor, value);
    return row[wanted.factor] == wanted.value;
  };
  Case c{.name = factors().name_of(row), .tied = is("head", "")};
  if (is("recording", "hold")) c.recording = Choice::kHold;
  if (is("recording", "replay")) c.recording = Choice::kReplay;
  c.two_pass = is("recording", "two_pass");
  if (is("tile", "head_by_tiles")) c.head_tile = kSomeBytes;
  if (is("tile", "head_by_outputs")) c.head_tile = 1;
  if (is("tile", "head_in_one_tile")) c.head_tile = int64_t{1} << 20;
  if (is("microbatch", "by_three")) c.microbatch = 3;
  if (is("microbatch", "by_one")) c.microbatch = 1;
  for (const char* mesh : {"1x2x1", "2x2x1", "1x1x2", "2x2x2"}) {
    if (is("mesh", mesh)) c.mesh = mesh;
  }
  if (c.mesh.ends_with("x2")) c.heads = 4;  // as many on each of the model ranks
  if (is("freeze", "no_embeddings")) c.freeze = {"transformer.w*"};
  if (is("freeze", "no_middle_block")) c.freeze = {"transformer.h.1.*"};
  if (is("freeze", "no_first_blocks")) c.freeze = {"transformer.w*", "transformer.h.0.*", "transformer.h.1.*"};
  if (is("freeze", "only_biases")) c.freeze = {"*.weight"};
  if (is("lora", "lora_some")) c.options = lora({"attn.c_attn", "mlp.c_proj"});
  if (is("lora", "lora_all")) c.options = lora({"*"});
  if (is("activations", "checkpointed")) c.options = checkpointed(c.options);
  if (is("dtype", "bfloat16")) c.options = in_bfloat16(c.options);
  if (is("gather", "int8")) c.options.gather_code = dp::weight_code(kernels::WeightCode::kInt8, kLeastCoded);
  if (is("gather", "float8")) c.options.gather_code = dp::weight_code(kernels::WeightCode::kFloat8, kLeastCoded);
  if (is("units", "users")) c.texts_per_unit = kUsers;
  c.streamed = is("reduction", "streamed");
  if (is("reduction", "kept_gathered")) c.options.residency.assign(5, fsdp::Residency::kKeep);
  if (is("clipping", "per_layer")) c.clipping = dp::Clipping::kPerLayer;
  if (c.options.lora.enabled() || !c.texts_per_unit.empty()) c.clip_norm = 3;
  if (is("clip", "all_clip")) c.clip_norm = 1e-3;
  if (is("clip", "none_clip")) c.clip_norm = 1e4;
  return c;
}

std::vector<Case> paired_cases() {
  std::vector<Case> cases;
  for (const auto& row : factors().rows()) cases.push_back(case_of(row));
  return cases;
}

// Values that meet nothing else, or only with others that they need.
const Case kCases[] = {
    {.name = "ordinary"},
    {.name = "embeddings_frozen_tied", .freeze = {"transformer.w*"}, .recording = Choice::kReplay},
    {.name = "recomputed_head_embeddings_frozen", .freeze = {"transformer.w*"}, .head_tile = kSomeBytes},
    {.name = "only_head", .tied = false, .freeze = {"transformer.*"}},
    {.name = "recomputed_head_only", .tied = false, .freeze = {"transformer.*"}, .head_tile = kSomeBytes},
    {.name = "only_embedding", .tied = false, .freeze = {"transformer.h.*", "transformer.ln_f.*", "lm_head.*"}},
    {.name = "eight_ranks", .microbatch = 2, .mesh = "1x8x1"},
    {.name = "two_replicas", .microbatch = 2, .mesh = "2x1x1"},
    {.name = "four_ranks", .microbatch = 2, .mesh = "1x4x1"},
    {.name = "four_model_ranks", .mesh = "1x1x4", .heads = 4},
    {.name = "model_ranks_only_whole_parameters",
     .freeze = {"*.c_attn.*", "*.c_fc.*", "*.c_proj.weight"},
     .mesh = "1x2x2",
     .heads = 4},
    {.name = "model_ranks_only_cut_parameters",
     .freeze = {"*.ln_*", "transformer.w*", "*.c_proj.bias"},
     .mesh = "1x1x2",
     .heads = 4},
    {.name = "lora_of_one_block", .clip_norm = 1, .options = lora({"transformer.h.1.mlp.c_fc"}, 1)},
    {.name = "lora_only_up", .freeze = {"*lora_A*"}, .clip_norm = 3, .options = lora({"*"})},
    {.name = "one_user", .clip_norm = 1, .texts_per_unit = {12}},
};

TEST(ClippedSumCases, AnyTwoValuesMeetOrAreForbidden) {
  const auto rows = factors().rows();
  const auto& all = factors().factors();
  for (size_t f = 0; f < all.size(); ++f) {
    for (size_t g = f + 1; g < all.size(); ++g) {
      for (size_t v = 0; v < all[f].values.size(); ++v) {
        for (size_t w = 0; w < all[g].values.size(); ++w) {
          const auto meets = [&](const auto& row) { return row[f] == v && row[g] == w; };
          EXPECT_EQ(std::any_of(rows.begin(), rows.end(), meets), factors().allowed({f, v}, {g, w}))
              << all[f].name << " '" << all[f].values[v] << "' with " << all[g].name << " '" << all[g].values[w] << "'";
        }
      }
    }
  }
  std::set<std::string> names;
  for (const Case& c : paired_cases()) names.insert(c.name);
  EXPECT_EQ(names.size(), rows.size());
}

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
    // Weights in codes have a sum of their own: that of the values that layers computed with.
    const auto weights = c.options.gather_code ? used_weights(model) : whole_weights(model);
    const ReferenceGpt2 reference(config, weights, frozen, scale);
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

const auto name_of = [](const auto& param) { return param.param.name; };
INSTANTIATE_TEST_SUITE_P(Pairs, ClippedSum, ::testing::ValuesIn(paired_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Alone, ClippedSum, ::testing::ValuesIn(kCases), name_of);

}  // namespace
}  // namespace ghostshard::tests
