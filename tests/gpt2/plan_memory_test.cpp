// What the plan counts for weights, buffers and optimizers is what they allocate.
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dp/optimizers/weight_rounding.h"
#include "dp/planning/step_plan.h"
#include "examples/gpt2/optimizers.h"
#include "examples/gpt2/setup.h"
#include "tests/gpt2/small_world.h"
#include "tests/support/recording_mesh.h"

namespace ghostshard::tests {
namespace {

// Bytes of tensors in host memory that live, by what LibTorch tells its profilers.
class AllocatedBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*place*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    live_ += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live() const { return live_; }

 private:
  int64_t live_ = 0;
};

struct MemoryCase {
  const char* name;
  const char* optimizer = gpt2::kAdamW;
  const char* compute_dtype = "float32";
  const char* master_dtype = "float32";
};
void PrintTo(const MemoryCase& c, std::ostream* out) { *out << c.name; }

class PlannedMemory : public testing::TestWithParam<std::tuple<MemoryCase, int64_t>> {
 protected:
  gpt2::Config config = [] {
    gpt2::Config wide = small_config(/*tied=*/true, /*heads=*/4);
    wide.n_layer = 3;
    wide.n_embd = 64;  // matrices of more than 4,096 elements, vectors of fewer
    wide.n_inner = 256;
    wide.vocab_size = 500;
    return wide;
  }();
};

INSTANTIATE_TEST_SUITE_P(
    , PlannedMemory,
    testing::Combine(testing::Values(MemoryCase{"adamw"}, MemoryCase{"adamw8bit", gpt2::kEightBits},
                                     MemoryCase{"adamw16bit", gpt2::kSixteenBits}, MemoryCase{"muon", gpt2::kMuon},
                                     MemoryCase{"sgd", gpt2::kSgd}, MemoryCase{"soap", gpt2::kSoap},
                                     MemoryCase{"bfloat16", gpt2::kAdamW, "bfloat16"},
                                     MemoryCase{"bfloat16_masters", gpt2::kAdamW, "bfloat16", "bfloat16"},
                                     MemoryCase{"all_narrow", gpt2::kEightBits, "bfloat16", "bfloat16"}),
                     testing::Values(1, 2)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) + "_on_" + std::to_string(std::get<1>(test.param));
    });

TEST_P(PlannedMemory, IsWhatIsAllocated) {
  const auto& [c, ranks] = GetParam();
  gpt2::Options o;
  o.optimizer.name = c.optimizer;
  o.compute_dtype = c.compute_dtype;
  o.master_dtype = c.master_dtype;
  gpt2::ModelOptions options = gpt2::model_options(o);
  const auto specs = gpt2::block_specs(config, {}, options);
  const gpt2::ParameterRules rules(o, specs);
  const auto blocks = gpt2::planned_blocks(config, specs, options, 1);
  const dp::StepShape shape{.units = 4,
                            .rows_per_unit = 8,
                            .microbatches = 2,
                            .shard_ranks = ranks,
                            .optimizer_values = gpt2::optimizer_values(o, rules, specs),
                            .value_bytes = options.compute_dtype == at::kFloat ? 4 : 2,
                            .master_bytes = options.weight_rounding ? 2 : 4};
  const auto plan = dp::plan_step(blocks, shape, {});
  for (const auto& block : plan.blocks) options.residency.push_back(block.residency);
  options.granule = gpt2::granules_of(rules, [&](const gpt2::Granules& granules) {
    gpt2::ModelOptions with = options;
    with.granule = granules;
    RecordingMesh mesh({.shard = ranks}, 0);
    return std::make_unique<fsdp::ModelLayout>(mesh, gpt2::block_specs(config, {}, with));
  });
  double allocated = 0;
  int64_t padding = 0, elements = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    RecordingMesh mesh({.shard = ranks}, rank);
    const auto counter = std::make_shared<AllocatedBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    gpt2::Gpt2 model(mesh, config, {}, options);
    const auto optimizer = gpt2::make_optimizer(o, rules, config, model.parameters());
    const fsdp::ShardBuffers reduced(model.parameters());
    allocated += static_cast<double>(counter->live()) / static_cast<double>(ranks);
    padding = 0;
    for (const auto& group : model.parameters().groups()) padding += group->plan().padding();
    elements = model.parameters().parameter_count();
  }
  const double counted = plan.state_bytes + plan.gathered_bytes;
  // Padding is not in the plan: the elements that it adds take at most what the others take. Beside it stand a few
  // numbers.
  const double most = (1 + static_cast<double>(padding) / static_cast<double>(elements)) * counted + 256;
  if (ranks == 1) {
    EXPECT_DOUBLE_EQ(allocated, counted) << "there is no padding";
  }
  EXPECT_GE(allocated, 0.9999 * counted);
  EXPECT_LE(allocated, most) << "counted " << counted << ", padding " << padding << " of " << elements;
  EXPECT_LT(most, 1.03 * counted) << "the bound says little";
}

}  // namespace
}  // namespace ghostshard::tests
