// A run whose clip norm adapts: what its ledger, its metrics and its checkpoints hold, and how it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "accountant/report.h"
#include "dp/run/private_run.h"
#include "fsdp/agree.h"
#include "tests/dp/run/row_sums.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using tests::RowSums;

constexpr int64_t kUnits = 12;

DpConfig config() {
  DpConfig adaptive{.units = kUnits, .expected_batch = kUnits, .steps = 6, .clip_norm = accountant::ClipNorm(0.5)};
  adaptive.noise_multiplier = accountant::NoiseMultiplier(1.0);
  adaptive.clip_quantile = ClipQuantile::around(adaptive.clip_norm, kUnits);
  adaptive.clip_quantile->count_noise = accountant::NoiseMultiplier(2);
  return adaptive;
}

class AdaptiveRun : public testing::Test {
 protected:
  std::filesystem::path folder() const { return temporary_.path() / "run"; }
  PrivateRun begin(bool resume = false) {
    RunOptions options{{.folder = folder(), .resume = resume, .checkpoint_every = 2, .keep_checkpoints = 9}};
    return PrivateRun::begin(layer_.model, fsdp::make_sgd(layer_.model, {}), config(), std::move(options));
  }
  void take(PrivateRun& run, int64_t steps = 1000) {
    for (int64_t i = 0; i < steps; ++i) {
      auto step = run.next();
      if (!step) return;
      step->add({}, 5, [&](std::span<const int64_t> units, const RecorderPtr& r) { return layer_.loss(units, r); });
      step->update(0.1);
    }
  }
  accountant::LedgerContents ledger() const { return accountant::read_ledger(folder() / "ledger.jsonl"); }

  const tests::TemporaryFolder temporary_;
  std::unique_ptr<fsdp::Mesh> mesh_ = fsdp::Mesh::single();
  RowSums layer_{*mesh_};
};

TEST_F(AdaptiveRun, ChargesBothPartsAndShowsEveryClipNorm) {
  auto run = begin();
  take(run);
  const auto report = run.finish();
  const auto lines = ledger();
  ASSERT_EQ(lines.entries.size(), 6U);
  EXPECT_EQ(lines.entries[0].clip_norm->value(), 0.5);
  for (const auto& entry : lines.entries) {
    EXPECT_EQ(entry.event, DpPlan::make(config()).event());
    EXPECT_TRUE(std::holds_alternative<accountant::AdaptiveClippingEvent>(entry.event));
  }
  const auto metrics = metrics_lines(folder() / "metrics.jsonl");
  for (size_t step = 0; step < 6; ++step) {
    EXPECT_EQ(metrics.at(step + 1).at("clip_norm").get<double>(), lines.entries[step].clip_norm->value());
  }
  EXPECT_TRUE(report.at("guarantee").at("applies").get<bool>());
  EXPECT_EQ(report.at("guarantee").at("epsilon").at("upper").get<double>(), run.plan().promised_epsilon().value());
  EXPECT_EQ(report.at("mechanism").at("clip_norms").at("first").get<double>(), 0.5);
  EXPECT_EQ(report.at("mechanism").at("clip_norms").at("last").get<double>(), lines.entries.back().clip_norm->value());
  for (const auto& assumption : report.at("assumptions")) EXPECT_TRUE(assumption.value("holds", true)) << assumption;
}

TEST_F(AdaptiveRun, GoesOnWithTheClipNormOfItsCheckpoint) {
  {
    auto run = begin();
    take(run, 3);  // the third one's result is lost
  }
  const double third = ledger().entries.at(2).clip_norm->value();
  EXPECT_NE(third, 0.5);
  auto run = begin(/*resume=*/true);
  EXPECT_EQ(run.plan().clip_norm().value(), third);
  take(run);
  const auto report = run.finish();
  const auto lines = ledger();
  EXPECT_EQ(lines.entries.at(3).step, 2);
  EXPECT_EQ(lines.entries.at(3).attempt, 1);
  EXPECT_EQ(lines.entries.at(3).clip_norm->value(), third) << "what the checkpoint holds";
  EXPECT_EQ(lines.entries.size(), 7U) << "one charged again; noise that was given promises no epsilon";
  EXPECT_TRUE(report.at("guarantee").at("applies").get<bool>());
}

TEST_F(AdaptiveRun, NeedsTheClipNormInItsCheckpoint) {
  {
    auto run = begin();
    take(run, 3);
  }
  const auto manifest = folder() / "checkpoints" / "step-000000000002" / "checkpoint.json";
  auto content = nlohmann::json::parse(std::ifstream(manifest));
  content.at("about").erase("clip_norm");
  std::ofstream(manifest) << content.dump();
  EXPECT_THAT([&] { begin(/*resume=*/true); }, ThrowsMessage<fsdp::AgreedFailure>(HasSubstr("must hold it")));
}

}  // namespace
}  // namespace ghostshard::dp
