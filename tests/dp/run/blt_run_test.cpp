// A run with noise from buffers that is lost and gone on with: its noise, its sampling, what it is charged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "accountant/report.h"
#include "accountant/report_verify.h"
#include "dp/run/private_run.h"
#include "fsdp/agree.h"
#include "kernels/gaussian_tensor.h"
#include "tests/dp/run/row_sums.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using tests::RowSums;

constexpr int64_t kUnits = 12, kSteps = 6;

DpConfig config() {
  return {.units = kUnits,
          .expected_batch = 3,
          .steps = kSteps,
          .clip_norm = accountant::ClipNorm(0.5),
          .noise_blt = {.outputs = {0.5F, 0.25F}, .decays = {0.5F, 0.75F}},
          .noise_multiplier = accountant::NoiseMultiplier(1.0),
          .delta = accountant::Delta(1e-6)};
}

class BltRun : public testing::Test {
 protected:
  RunOptions options(bool resume = false) const {
    RunOptions all{
        {.folder = temporary_.path() / "run", .resume = resume, .checkpoint_every = 2, .keep_checkpoints = 9}};
    all.noise_key_file = temporary_.path() / "key";
    if (!resume) {
      std::ofstream(all.noise_key_file, std::ios::binary) << std::string(32, 'k');
      ::chmod(all.noise_key_file.c_str(), 0600);
    }
    return all;
  }
  static PrivateRun begin(RowSums& layer, const RunOptions& options, const DpConfig& plan = config()) {
    return PrivateRun::begin(layer.model, fsdp::make_sgd(layer.model, {}), plan, options);
  }
  // Without gradients: noise alone.
  void take(PrivateRun& run, RowSums& layer, int64_t steps = 1000) {
    for (int64_t i = 0; i < steps; ++i) {
      auto step = run.next();
      if (!step) return;
      const int64_t number = step->number();
      step->add({}, 5, [&](std::span<const int64_t> units, const RecorderPtr& r) {
        for (const int64_t unit : units) seen_.emplace(number, unit);
        return layer.loss(units, r) * 0;
      });
      step->update(0.1);
    }
  }
  // What the next step's sum of three units holds, read from what the weights moved by. [12]
  at::Tensor noise_of_a_step(PrivateRun& run, RowSums& layer) {
    const at::Tensor before = layer.model.whole_parameter(layer.model.parameter("weight")).clone();
    take(run, layer, 1);
    return (before - layer.model.whole_parameter(layer.model.parameter("weight"))).flatten() * (3 / 0.1);
  }
  accountant::LedgerContents ledger() const {
    return accountant::read_ledger(temporary_.path() / "run" / "ledger.jsonl");
  }

  const tests::TemporaryFolder temporary_;
  const std::unique_ptr<fsdp::Mesh> mesh_ = fsdp::Mesh::single();
  std::set<std::pair<int64_t, int64_t>> seen_;  // (step, unit)
};

TEST_F(BltRun, GoesOnWithAChainOfItsOwn) {
  {
    RowSums layer(*mesh_);
    auto run = begin(layer, options());
    take(run, layer, 3);  // the third one's result is lost
  }
  RowSums layer(*mesh_);
  auto run = begin(layer, options(/*resume=*/true));
  EXPECT_EQ(run.course().done(), 2);
  const auto key = RunKey::recall(options(true).noise_key_file, run_id_from_hex(ledger().epochs.at(0).run_id));
  const auto plan = run.plan().config().noise_blt;
  EXPECT_EQ(plan.separation, 4);
  const auto rows = plan.rows();
  const auto fresh = [&](const StepId& step) {
    at::Tensor z = at::zeros({12});
    kernels::add_gaussian(key.derive(Purpose::kNoise, step), 0, 0, static_cast<float>(rows.norm() / 2), z);
    return z;
  };
  const at::Tensor first = noise_of_a_step(run, layer), second = noise_of_a_step(run, layer),
                   third = noise_of_a_step(run, layer);
  // Weights of order 1 hold a difference of 0.1/3 of the noise to 2^-24: 2e-6 of noise of order 1.
  EXPECT_LT((first - fresh({2, 1})).abs().max().item<double>(), 1e-5) << "of the lost session nothing is taken back";
  EXPECT_LT((second - (fresh({3}) - 0.75 * first)).abs().max().item<double>(), 3e-5);
  const double further = 0.5 * 0.5 + 0.25 * 0.75;
  EXPECT_LT((third - (fresh({4}) - 0.75 * second - further * first)).abs().max().item<double>(), 5e-5);
  take(run, layer);
  const auto report = run.finish();
  const auto lines = ledger();
  std::vector<std::pair<int64_t, int64_t>> charged;
  auto engine = run.plan().accountant();
  const int64_t expected[] = {0, 1, 2, 0, 1, 2, 3};  // rows: three, and four from step 2 on
  ASSERT_EQ(lines.entries.size(), 7U);
  for (size_t i = 0; i < 7; ++i) {
    const accountant::Event price =
        accountant::GaussianEvent{rows.charged(expected[i], accountant::NoiseMultiplier(1))};
    EXPECT_EQ(lines.entries[i].event, price) << i;
    engine->compose(price, 1);
  }
  const double epsilon = engine->epsilon(accountant::Delta(1e-6)).upper;
  EXPECT_EQ(report.at("guarantee").at("epsilon").at("upper").get<double>(), epsilon);
  EXPECT_NEAR(run.epsilon(), epsilon, 1e-9 * epsilon);
  EXPECT_TRUE(report.at("guarantee").at("applies").get<bool>());
  EXPECT_TRUE(report.at("sampler").at("executed_is_assumed").get<bool>());
  for (const auto& assumption : report.at("assumptions")) EXPECT_TRUE(assumption.value("holds", true)) << assumption;
  for (const auto& finding : accountant::verify_report(lines, report))
    EXPECT_NE(finding.verdict, accountant::Finding::Verdict::kDiffers) << finding.what;
  // Each unit in the steps of its group alone, repeated ones included.
  std::set<std::pair<int64_t, int64_t>> whole;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t unit = step % 4; unit < kUnits; unit += 4) whole.emplace(step, unit);
  }
  EXPECT_EQ(seen_, whole);
}

TEST_F(BltRun, EndsEarlyRatherThanBeyondItsTarget) {
  auto plan = config();
  plan.noise_multiplier.reset();
  plan.target_epsilon = accountant::Epsilon(4);
  {
    RowSums layer(*mesh_);
    auto run = begin(layer, options(), plan);
    take(run, layer, 5);  // a checkpoint stands after four
  }
  RowSums layer(*mesh_);
  auto run = begin(layer, options(/*resume=*/true), plan);
  take(run, layer);
  const auto report = run.finish();
  EXPECT_LE(report.at("guarantee").at("epsilon").at("upper").get<double>(), 4);
  EXPECT_LE(run.epsilon(), 4);
}

TEST_F(BltRun, HasNoRegister) {
  RowSums layer(*mesh_);
  auto registered = options();
  registered.budget_register = {.file = temporary_.path() / "register", .data_digest = std::string(64, '0')};
  EXPECT_THAT([&] { begin(layer, registered); },
              testing::ThrowsMessage<fsdp::AgreedFailure>(testing::HasSubstr("noise buffers cannot be combined")));
  EXPECT_FALSE(std::filesystem::exists(registered.folder));
}

}  // namespace
}  // namespace ghostshard::dp
