// The same run on one rank and on several: one key, one result, up to the rounding of sums.
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>

#include "tests/gpt2/small_world.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {
namespace {

using Weights = std::map<std::string, at::Tensor>;

struct RunSpec {
  fsdp::MeshShape mesh;
  int64_t steps = 3;
  bool adamw = false;
  int64_t microbatch = 2;
  int64_t expected_batch = 5;
  int64_t heads = 3;
};

// One rank's whole run, private, with the test's key and run id.
Weights train_rank(fsdp::Mesh& mesh, const RunSpec& run, const std::filesystem::path& texts) {
  const gpt2::Config config = small_config(true, run.heads);
  gpt2::Gpt2 model(mesh, config, {});
  randomize(model, 5);
  const gpt2::Dataset data(texts, config.vocab_size, config.n_positions);
  const auto plan = dp::DpPlan::make({.units = data.units(),
                                      .expected_batch = run.expected_batch,
                                      .steps = run.steps,
                                      .noise_multiplier = accountant::NoiseMultiplier(0.7)});
  const auto key = key_of(8);
  auto clipper = plan.clipper(model.parameters());
  auto mechanism = plan.mechanism(model.parameters(), key, nullptr);
  const auto sampler = plan.sampler(key, mesh.data_rank(), mesh.data_size());
  dp::PrivateOptimizer optimizer(run.adamw ? fsdp::make_adamw(model.parameters(), {.weight_decay = 0.01})
                                           : fsdp::make_sgd(model.parameters(), {}));
  for (int64_t step = 0; step < run.steps; ++step) {
    auto sum = clipped_batch(model, clipper, data, sampler.draw_local({step}, run.microbatch, data.row_counts()),
                             mechanism, {step});
    optimizer.step(mechanism.release(std::move(sum), {step}), run.adamw ? 1e-3 : 0.05);
  }
  return whole_weights(model);
}

Weights train(const RunSpec& run) {
  const TemporaryFolder folder;
  const auto path = write_texts(folder.path() / "texts.safetensors", awkward_texts(small_config(true, run.heads)));
  std::mutex results;
  Weights weights;
  run_mesh(run.mesh, [&](fsdp::Mesh& mesh) {
    const Weights mine = train_rank(mesh, run, path);
    const std::lock_guard lock(results);
    if (weights.empty()) weights = mine;
    // Replicas must not drift apart by a bit, nor model ranks in the parameters that they all hold.
    for (const auto& [name, value] : mine) {
      EXPECT_TRUE(at::equal(value, weights.at(name))) << name << " on rank " << mesh.rank();
    }
  });
  return weights;
}

double relative_difference(const Weights& a, const Weights& b) {
  double difference = 0, size = 0;
  for (const auto& [name, value] : a) {
    difference += (value - b.at(name)).to(at::kDouble).pow(2).sum().item<double>();
    size += value.to(at::kDouble).pow(2).sum().item<double>();
  }
  return std::sqrt(difference / size);
}

class Ranks : public ::testing::TestWithParam<const char*> {
 protected:
  // The same run on this test's mesh.
  static RunSpec here(RunSpec run) {
    run.mesh = fsdp::MeshShape::parse(GetParam());
    return run;
  }
  static int64_t heads() { return here({}).mesh.model > 1 ? 4 : 3; }
};

TEST_P(Ranks, ThreeSgdStepsGiveTheWeightsOfOneRankUpToSumRounding) {
  // Noise and batches are bit-equal; only the order in which clipped gradients are added differs: per step an error
  // of at most lr/B·(terms)·2^-24·(sum of norms ≤ terms·C + noise) ≈ 0.05/5·12·6e-8·15 = 1e-7 in absolute size against
  // weights of norm about 20, and the next steps' gradients move by no more than that times the loss's curvature
  // (~1e2).
  // A model axis also changes the sums inside a layer: each text's gradient, of norm at most C = 1, moves by up to 1e-5
  // of itself (clipped_sum_test.cpp), 0.05/5·12·1e-5 = 1.2e-6 per step.
  const double per_step = heads() == 4 ? 1.2e-6 : 1e-7;
  const double bound = 3 * per_step / 20 * 1e2;
  const Weights one = train({.heads = heads()});
  EXPECT_LT(relative_difference(one, train(here({.heads = heads()}))), bound);
  EXPECT_GT(relative_difference(one, train({.steps = 2, .heads = heads()})), 1e-4)
      << "the comparison must be able to fail";
}

TEST_P(Ranks, TwentyAdamWStepsStayWithinOneInTenThousand) {
  const RunSpec run{.steps = 20, .adamw = true, .heads = heads()};
  EXPECT_LT(relative_difference(train(run), train(here(run))), 1e-4);
}

TEST_P(Ranks, EmptyAndUnequalBatchesEndWell) {
  // One text expected in a batch: most ranks have nothing most of the time, and some logical batches are empty.
  const RunSpec run{.steps = 6, .expected_batch = 1, .heads = heads()};
  EXPECT_LT(relative_difference(train(run), train(here(run))), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Ranks,
                         ::testing::Values("1x2x1", "1x4x1", "1x8x1", "2x1x1", "4x1x1", "2x2x1", "1x1x2", "1x2x2",
                                           "2x2x2"),
                         [](const auto& param) { return "on_" + std::string(param.param); });

TEST(SameRun, IsBitEqualWhenRepeated) {
  for (const char* mesh : {"1x2x1", "2x2x1", "1x2x2"}) {
    const RunSpec run{.mesh = fsdp::MeshShape::parse(mesh), .adamw = true, .heads = 4};
    const Weights first = train(run);
    const Weights again = train(run);
    for (const auto& [name, value] : first) EXPECT_TRUE(at::equal(value, again.at(name))) << name << " on " << mesh;
  }
}

TEST(MicrobatchSize, DoesNotChangeTheResultBeyondRounding) {
  EXPECT_LT(relative_difference(train({.microbatch = 1}), train({.microbatch = 50})), 1e-5);
}

// A process of its own, with a launcher's environment: tests/python/test_two_hosts.py starts it on every rank.
TEST(RankOfAnEnvironment, DISABLED_WritesItsWeights) {
  const char* output = std::getenv("GHOSTSHARD_TEST_OUTPUT");
  const char* shape = std::getenv("GHOSTSHARD_TEST_MESH");
  ASSERT_TRUE(output != nullptr && shape != nullptr) << "started without GHOSTSHARD_TEST_OUTPUT, GHOSTSHARD_TEST_MESH";
  const auto mesh = fsdp::Mesh::from_environment(std::chrono::seconds(60), fsdp::MeshShape::parse(shape));
  const TemporaryFolder folder;
  const auto path = write_texts(folder.path() / "texts.safetensors", awkward_texts(small_config(true, 4)));
  std::vector<fsdp::NamedTensor> tensors;
  for (auto& [name, value] : train_rank(*mesh, {.steps = 4, .adamw = true, .heads = 4}, path)) {
    tensors.push_back({name, value});
  }
  fsdp::write_safetensors(std::string(output) + "." + std::to_string(mesh->rank()), tensors, {});
  mesh->control().barrier();
}

TEST(FailingRank, EndsAllRanksWithItsMessage) {
  const gpt2::Config config = small_config(true);
  try {
    run_ranks(2, [&](fsdp::Mesh& mesh) {
      gpt2::Gpt2 model(mesh, config, {});
      gpt2::initialize(model, 1);
      if (mesh.rank() == 1) throw std::runtime_error("disk on fire");
      model.logits(gpt2::batch_of_rows(std::vector<int64_t>{1, 2, 3}));
    });
    FAIL() << "nobody noticed";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("disk on fire"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ghostshard::tests
