// docs/guarantee.md, fact 3: noise of variance (sigma·C)² per coordinate, once, the same for every number of owners,
// new for every step and attempt.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/dp/mechanism/released_noise.h"
#include "tests/support/recording_mesh.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::tests {
namespace {

class NoiseOnMesh : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, NoiseOnMesh,
                         ::testing::Values("1x2x1", "1x4x1", "1x8x1", "2x1x1", "4x1x1", "2x2x1", "2x4x1", "1x1x2",
                                           "1x1x4", "1x2x2", "2x1x2", "2x2x2"),
                         [](const auto& param) { return "mesh_" + std::string(param.param); });

TEST_P(NoiseOnMesh, IsThatOfOneRankBitForBit) {
  const auto one = released_noise({}, 5, {{0}});
  const auto more = released_noise(fsdp::MeshShape::parse(GetParam()), 5, {{0}});
  ASSERT_EQ(one.size(), more.size());
  for (const auto& [name, value] : one) EXPECT_TRUE(at::equal(value, more.at(name))) << name;
}

TEST_P(NoiseOnMesh, GoesInOnceWhereEveryMicrobatchIsReduced) {
  const auto one = released_noise({}, 5, {{0}});
  for (const int64_t microbatches : {0, 1, 3}) {
    const auto streamed = released_noise(fsdp::MeshShape::parse(GetParam()), 5, {{0}}, /*streamed=*/true, microbatches);
    for (const auto& [name, value] : one) {
      EXPECT_TRUE(at::equal(value, streamed.at(name))) << name << " after " << microbatches << " microbatches";
    }
  }
}

TEST_P(NoiseOnMesh, HasVarianceSigmaTimesClipSquaredOnce) {
  const auto noise = released_noise(fsdp::MeshShape::parse(GetParam()), 6, {{0}});
  const at::Tensor z = all_values(noise).to(at::kDouble) / (kSigma * kClip);
  const auto n = static_cast<double>(z.numel());
  // Mean of n standard normals: sd 1/sqrt(n). Mean of squares: sd sqrt(2/n). Five of each: one false alarm in 1e6.
  EXPECT_LT(std::abs(z.mean().item<double>()), 5 / std::sqrt(n));
  EXPECT_LT(std::abs(z.pow(2).mean().item<double>() - 1), 5 * std::sqrt(2 / n));
}

TEST(Noise, IsNewForEveryStepAttemptAndKeyAndIndependentOfTheOthers) {
  const at::Tensor base = all_values(released_noise({}, 5, {{0}})).to(at::kDouble) / (kSigma * kClip);
  const std::pair<const char*, at::Tensor> others[] = {{"next step", all_values(released_noise({}, 5, {{1}}))},
                                                       {"next attempt", all_values(released_noise({}, 5, {{0, 1}}))},
                                                       {"other key", all_values(released_noise({}, 6, {{0}}))}};
  for (const auto& [name, other] : others) {
    const at::Tensor z = other.to(at::kDouble) / (kSigma * kClip);
    // Correlation of independent normals: sd 1/sqrt(n).
    const double correlation = (z * base).mean().item<double>();
    EXPECT_LT(std::abs(correlation), 5 / std::sqrt(static_cast<double>(z.numel()))) << name;
  }
}

TEST(Noise, IsIndependentBetweenParameters) {
  const auto noise = released_noise({}, 5, {{0}});
  const at::Tensor a = noise.at("a").to(at::kDouble) / (kSigma * kClip);
  const at::Tensor c = noise.at("c").narrow(0, 0, a.numel()).to(at::kDouble) / (kSigma * kClip);
  EXPECT_LT(std::abs((a * c).mean().item<double>()), 5 / std::sqrt(static_cast<double>(a.numel())));
}

TEST(Mechanism, RefusesToRepeatAStepsNoise) {
  EXPECT_THROW(released_noise({}, 5, {{3}, {3}}), std::runtime_error);
  EXPECT_THROW(released_noise({}, 5, {{3}, {2}}), std::runtime_error);
  EXPECT_NO_THROW(released_noise({}, 5, {{3}, {3, 1}, {4}}));
}

TEST(Mechanism, RefusesASumOfAnotherPlanAndAConsumedOne) {
  const auto mesh = lone_mesh();
  fsdp::ShardedModel model(*mesh, kUnits);
  const auto key = key_of(1);
  const auto plan = plan_without_noise(10, 1.0);
  const auto other = plan_without_noise(10, 5.0);
  auto clipper = plan.clipper(model);
  auto mechanism = plan.mechanism(model, key, nullptr);
  auto stranger = other.clipper(model).begin();
  EXPECT_THROW(mechanism.release(std::move(stranger), {0}), std::logic_error);
  auto sum = clipper.begin();
  EXPECT_THROW(clipper.begin(), std::logic_error) << "two logical batches at once";
  mechanism.release(std::move(sum), {1});
  EXPECT_THROW(mechanism.release(std::move(sum), {2}), std::logic_error) << "a sum released twice";
}

TEST(Mechanism, ChargesBeforeTheFirstReductionAndOnlyOnce) {
  const auto mesh = lone_mesh();
  fsdp::ShardedModel model(*mesh, kUnits);
  const auto plan = dp::DpPlan::make(
      {.units = 100, .expected_batch = 10, .steps = 5, .noise_multiplier = accountant::NoiseMultiplier(1.0)});
  const auto key = key_of(1);
  const TemporaryFolder folder;
  auto ledger = accountant::LedgerWriter::create(folder.path() / "ledger.jsonl", plan.ledger_header(key));
  auto clipper = plan.clipper(model, {.streamed = std::vector<bool>(model.groups().size(), true)});
  auto mechanism = plan.mechanism(model, key, &ledger);
  EXPECT_THROW(clipper.begin(), std::logic_error) << "noise could not go in first";
  {
    auto sum = clipper.begin(mechanism, {0});
    EXPECT_EQ(ledger.entries(), 0);
    clipper.add(sum, clipper.record(0));
    EXPECT_EQ(ledger.entries(), 1) << "written before anything was reduced";
    clipper.add(sum, clipper.record(0));
    EXPECT_THROW(mechanism.release(std::move(sum), {1}), std::logic_error) << "another step";
  }
  {
    // The step was given up: its noise must not come again.
    auto sum = clipper.begin(mechanism, {0});
    EXPECT_THROW(clipper.add(sum, clipper.record(0)), std::logic_error);
  }
  {
    auto sum = clipper.begin(mechanism, {0, 1});
    clipper.add(sum, clipper.record(0));
    const auto gradient = mechanism.release(std::move(sum), {0, 1});
  }
  EXPECT_EQ(ledger.entries(), 2);
}

// Whether groups are reduced at the end or with every microbatch: the first thing that leaves a rank is the news that
// the ledger has the release; and if it could not be written, nothing else leaves.
TEST(Mechanism, ChargesBeforeAnythingLeaves) {
  const auto plan = dp::DpPlan::make(
      {.units = 100, .expected_batch = 10, .steps = 5, .noise_multiplier = accountant::NoiseMultiplier(1.0)});
  for (const bool streamed : {false, true}) {
    for (const bool refused : {false, true}) {
      RecordingMesh mesh({.shard = 2}, 0);
      fsdp::ShardedModel model(mesh, kUnits);
      const auto key = key_of(1);
      const TemporaryFolder folder;
      auto ledger = accountant::LedgerWriter::create(folder.path() / "ledger.jsonl", plan.ledger_header(key));
      if (refused) ledger.append(0, 0, plan.event());
      auto clipper = plan.clipper(model, {.streamed = std::vector<bool>(model.groups().size(), streamed)});
      auto mechanism = plan.mechanism(model, key, &ledger);
      mesh.forget();
      auto sum = clipper.begin(mechanism, {0});
      const auto run = [&] {
        clipper.add(sum, clipper.record(0));
        mechanism.release(std::move(sum), {0});
      };
      if (refused) {
        EXPECT_THROW(run(), std::runtime_error);
      } else {
        run();
      }
      ASSERT_FALSE(mesh.calls().empty());
      EXPECT_EQ(mesh.calls().front().communicator, "control") << "streamed: " << streamed;
      EXPECT_EQ(mesh.bytes_sent("reduce") == 0, refused) << "streamed: " << streamed;
    }
  }
}

TEST(Mechanism, RefusesAKeyThatServesAnother) {
  const auto mesh = lone_mesh();
  fsdp::ShardedModel model(*mesh, kUnits);
  const auto key = key_of(1);
  const auto plan = plan_without_noise(10, 1.0);
  const auto mechanism = plan.mechanism(model, key, nullptr);
  EXPECT_THROW(plan.mechanism(model, key, nullptr), std::logic_error) << "its noise would repeat";
}

}  // namespace
}  // namespace ghostshard::tests
