// A run as a user of the library has it: what it leaves, what it refuses, and that it cannot be misused.
#include "dp/run/private_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <mutex>

#include "accountant/report.h"
#include "accountant/report_verify.h"
#include "dp/optimizers/coded_adamw.h"
#include "fsdp/agree.h"
#include "kernels/gaussian_tensor.h"
#include "tests/dp/run/row_sums.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using tests::RowSums;

constexpr int64_t kUnits = 12;

DpConfig config(int64_t steps = 4) {
  return {.units = kUnits,
          .expected_batch = kUnits,
          .steps = steps,
          .clip_norm = accountant::ClipNorm(0.5),
          .noise_multiplier = accountant::NoiseMultiplier(1.0),
          .delta = accountant::Delta(1e-6)};
}

class PrivateRunTest : public testing::Test {
 protected:
  std::filesystem::path folder() const { return temporary_.path() / "run"; }
  RunOptions options(bool resume = false) const {
    return {{.folder = folder(), .resume = resume, .checkpoint_every = 2, .keep_checkpoints = 9}};
  }
  std::filesystem::path key_file() const {
    const auto path = temporary_.path() / "key";
    std::ofstream(path, std::ios::binary) << std::string(32, 'k');
    ::chmod(path.c_str(), 0600);
    return path;
  }
  static PrivateRun begin(RowSums& layer, const RunOptions& options, const DpConfig& plan = config()) {
    return PrivateRun::begin(layer.model, fsdp::make_sgd(layer.model, {}), plan, options);
  }
  static void take(PrivateRun& run, RowSums& layer, int64_t steps = 1000, double weight = 1) {
    for (int64_t i = 0; i < steps; ++i) {
      auto step = run.next();
      if (!step) return;
      step->add({}, 5,
                [&](std::span<const int64_t> units, const RecorderPtr& r) { return layer.loss(units, r) * weight; });
      step->update(0.1);
    }
  }
  static void take_without_gradient(PrivateRun& run, RowSums& layer, int64_t steps) { take(run, layer, steps, 0); }
  // What the next step's sum of three units holds without their gradients, read from what the weights moved by. [12]
  static at::Tensor noise_of_a_step(PrivateRun& run, RowSums& layer) {
    const at::Tensor before = layer.model.whole_parameter(layer.model.parameter("weight")).clone();
    take_without_gradient(run, layer, 1);
    return (before - layer.model.whole_parameter(layer.model.parameter("weight"))).flatten() * (3 / 0.1);
  }
  accountant::LedgerContents ledger() const { return accountant::read_ledger(folder() / "ledger.jsonl"); }

  const tests::TemporaryFolder temporary_;
};

TEST_F(PrivateRunTest, LeavesLedgerMetricsCheckpointsAndReport) {
  const auto mesh = fsdp::Mesh::single();
  RowSums layer(*mesh);
  auto run = begin(layer, options());
  take(run, layer);
  const auto report = run.finish();
  EXPECT_EQ(ledger().entries.size(), 4U);
  EXPECT_EQ(metrics_lines(folder() / "metrics.jsonl").size(), 5U);
  EXPECT_EQ(fsdp::list_checkpoints(folder() / "checkpoints").size(), 2U);
  EXPECT_EQ(report.at("guarantee").at("epsilon").at("upper").get<double>(), run.plan().promised_epsilon().value());
  EXPECT_DOUBLE_EQ(run.epsilon(), run.plan().promised_epsilon().value());
  EXPECT_TRUE(report.at("guarantee").at("applies").get<bool>());
  EXPECT_FALSE(run.next().has_value());
}

TEST_F(PrivateRunTest, ReleasesTheClippedMeanOfTheBatch) {
  const auto mesh = fsdp::Mesh::single();
  RowSums layer(*mesh);
  auto quiet = config(1);
  quiet.noise_multiplier = accountant::NoiseMultiplier(1e-9);
  auto run = begin(layer, options(), quiet);
  take(run, layer);
  // Each unit's gradient is all ones, of norm sqrt(12), clipped to 0.5: their mean moves each weight by
  // -0.1·0.5/sqrt(12).
  const double moved = -0.1 * 0.5 / std::sqrt(12.0);
  const at::Tensor weight = layer.model.whole_parameter(layer.model.parameter("weight"));
  EXPECT_LT((weight - moved).abs().max().item<double>(), 1e-6 * std::abs(moved) * 10);
}

TEST_F(PrivateRunTest, TellsTheOptimizerTheNoisesVariance) {
  const auto mesh = fsdp::Mesh::single();
  RowSums layer(*mesh);
  auto optimizer = make_coded_adamw(layer.model, {});
  const fsdp::Optimizer& seen = *optimizer;
  EXPECT_EQ(seen.kinds().back(), "second_moment");
  auto run = PrivateRun::begin(layer.model, std::move(optimizer), config(), options());
  EXPECT_EQ(seen.kinds().back(), "second_moment_excess") << "over the noise's share";
  // (sigma·C/B)²
  EXPECT_DOUBLE_EQ(run.plan().release_variance(), 1.0 * 0.5 / kUnits * (1.0 * 0.5 / kUnits));
  take(run, layer);
  EXPECT_THAT(run.finish().at("mechanism").at("optimizer").get<std::string>(), testing::StartsWith("adamw8bit, "));
}

TEST_F(PrivateRunTest, CannotBeMisused) {
  const auto mesh = fsdp::Mesh::single();
  RowSums layer(*mesh);
  const LossOfUnits loss = [&](std::span<const int64_t> units, const RecorderPtr& r) { return layer.loss(units, r); };
  auto run = begin(layer, options());
  auto step = run.next();
  ASSERT_TRUE(step);
  EXPECT_THROW(run.next(), std::logic_error) << "a draw is not thrown away";
  EXPECT_THROW(step->update(0.1), std::logic_error) << "nothing was added";
  EXPECT_THROW(run.finish(), std::logic_error);
  step->add({}, 5, loss);
  EXPECT_THROW(step->add({}, 5, loss), std::logic_error) << "the same batch twice in one sum";
  EXPECT_THROW(run.next(), std::logic_error);
  EXPECT_THROW(step->update(NAN), std::invalid_argument) << "before anything is released";
  EXPECT_TRUE(ledger().entries.empty());
  step->update(0.1);
  EXPECT_THROW(step->update(0.1), std::logic_error) << "a gradient is used once";
  EXPECT_THROW(step->add({}, 5, loss), std::logic_error) << "the step is over";
  EXPECT_EQ(ledger().entries.size(), 1U);
}

TEST_F(PrivateRunTest, ALossThatThrowsEndsTheRun) {
  const auto mesh = fsdp::Mesh::single();
  RowSums layer(*mesh);
  auto run = begin(layer, options());
  auto step = run.next();
  EXPECT_THROW(step->add({}, 5, [](auto, const auto&) -> at::Tensor { throw std::runtime_error("broken"); }),
               std::runtime_error);
  EXPECT_THROW(step->update(0.1), std::logic_error);
  EXPECT_THROW(run.next(), std::logic_error);
  EXPECT_TRUE(ledger().entries.empty());
}

TEST_F(PrivateRunTest, ALossIsOneNumber) {
  const auto mesh = fsdp::Mesh::single();
  RowSums layer(*mesh);
  auto run = begin(layer, options());
  EXPECT_THROW(run.next()->add({}, 5, [](auto units, const auto&) { return at::ones({2 + (int64_t)units.size()}); }),
               c10::ValueError);
}

TEST_F(PrivateRunTest, GoesOnFromItsCheckpointUnderARunIdOfItsOwn) {
  const auto mesh = fsdp::Mesh::single();
  auto with_key = options();
  with_key.noise_key_file = key_file();
  {
    RowSums layer(*mesh);
    auto run = begin(layer, with_key);
    take(run, layer, 3);
  }
  EXPECT_EQ(ledger().entries.size(), 3U);
  with_key.resume = true;
  RowSums layer(*mesh);
  auto run = begin(layer, with_key);
  EXPECT_EQ(run.course().done(), 2);
  take(run, layer);
  run.finish();
  const auto lines = ledger();
  ASSERT_EQ(lines.epochs.size(), 1U);
  EXPECT_NE(lines.epochs[0].run_id, lines.header.at("run_id").get<std::string>());
  EXPECT_EQ(lines.entries[3].step, 2);
  EXPECT_EQ(lines.entries[3].attempt, 1) << "its result was lost: charged again";
  EXPECT_EQ(lines.entries.size(), 5U) << "noise that was given promises no epsilon: the run goes to its end";
  EXPECT_EQ(run.course().done(), 4);
  RowSums again(*mesh);
  EXPECT_TRUE(begin(again, with_key).was_finished());
}

// Of correlated noise a session takes back its own alone, and what a crash repeats is one more round of its group.
TEST_F(PrivateRunTest, WithNoiseBandsGoesOnWithAChainOfItsOwn) {
  const auto mesh = fsdp::Mesh::single();
  auto banded = config(6);
  banded.expected_batch = 3;
  banded.noise_bands.ratios = {0.7F, 0.5F, 0.3F};
  auto with_key = options();
  with_key.noise_key_file = key_file();
  {
    RowSums layer(*mesh);
    auto run = begin(layer, with_key, banded);
    take_without_gradient(run, layer, 3);  // the third one's result is lost
  }
  with_key.resume = true;
  RowSums layer(*mesh);
  auto run = begin(layer, with_key, banded);
  const auto noise_of_next = [&] { return noise_of_a_step(run, layer); };
  const auto key = RunKey::recall(with_key.noise_key_file, run_id_from_hex(ledger().epochs.at(0).run_id));
  const auto fresh = [&](const StepId& step) {
    at::Tensor z = at::zeros({12});
    kernels::add_gaussian(key.derive(Purpose::kNoise, step), 0, 0, static_cast<float>(banded.noise_bands.norm() / 2),
                          z);
    return z;
  };
  const at::Tensor first = noise_of_next(), second = noise_of_next();
  // Weights of order 1 hold a difference of 0.1/3 of the noise to 2^-24: 2e-6 of noise of order 1.
  EXPECT_LT((first - fresh({2, 1})).abs().max().item<double>(), 1e-5) << "of the lost session nothing is taken back";
  EXPECT_LT((second - (fresh({3}) - 0.7 * first)).abs().max().item<double>(), 2e-5);
  take_without_gradient(run, layer, 1000);
  const auto report = run.finish();
  EXPECT_EQ(ledger().entries.size(), 7U);
  EXPECT_EQ(report.at("population_and_steps").at("groups").at("rounds"), nlohmann::json({2, 2, 2, 1}));
  EXPECT_EQ(report.at("guarantee").at("epsilon").at("upper").get<double>(), run.plan().promised_epsilon().value());
  EXPECT_DOUBLE_EQ(run.epsilon(), run.plan().promised_epsilon().value());
  EXPECT_TRUE(report.at("guarantee").at("applies").get<bool>());
}

// Of noise that is drawn again a session takes back its own alone; a chain ends where b divides the step.
TEST_F(PrivateRunTest, WithANoiseChainGoesOnWithAChainOfItsOwn) {
  const auto mesh = fsdp::Mesh::single();
  auto chained = config(6);
  chained.expected_batch = 3;
  chained.noise_chain = {.steps = 4, .decay = 0.75F};
  auto with_key = options();
  with_key.noise_key_file = key_file();
  {
    RowSums layer(*mesh);
    auto run = begin(layer, with_key, chained);
    take_without_gradient(run, layer, 3);  // the third one's result is lost
  }
  with_key.resume = true;
  RowSums layer(*mesh);
  auto run = begin(layer, with_key, chained);
  const auto noise_of_next = [&] { return noise_of_a_step(run, layer); };
  const auto key = RunKey::recall(with_key.noise_key_file, run_id_from_hex(ledger().epochs.at(0).run_id));
  const auto fresh = [&](const StepId& step) {
    at::Tensor z = at::zeros({12});
    kernels::add_gaussian(key.derive(Purpose::kNoise, step), 0, 0, 0.5F, z);
    return z;
  };
  const at::Tensor second = noise_of_next(), third = noise_of_next(), fourth = noise_of_next();
  // As above; s_2 = √(1 + 0.75²), s_3 = 1.
  EXPECT_LT((second - 1.25 * fresh({2, 1})).abs().max().item<double>(), 2e-5)
      << "of the session before nothing is taken back";
  EXPECT_LT((third - (fresh({3}) - 0.75 * fresh({2, 1}))).abs().max().item<double>(), 2e-5);
  EXPECT_LT((fourth - chained.noise_chain.norm(4) * fresh({4})).abs().max().item<double>(), 2e-5) << "another chain";
  take_without_gradient(run, layer, 1000);
  const auto report = run.finish();
  EXPECT_EQ(ledger().entries.size(), 7U);
  EXPECT_EQ(report.at("population_and_steps").at("groups").at("rounds"), nlohmann::json({2, 2, 2, 1}));
  EXPECT_EQ(report.at("guarantee").at("epsilon").at("upper").get<double>(), run.plan().promised_epsilon().value());
  EXPECT_TRUE(report.at("guarantee").at("applies").get<bool>());
}

// A pass of balls-in-bins sampling is charged once, ends with its session, and is never gone on with.
TEST_F(PrivateRunTest, WithBallsInBinsBeginsAnotherPass) {
  const auto mesh = fsdp::Mesh::single();
  auto bins = config(8);
  bins.expected_batch = 3;  // passes of 4 steps
  bins.sampling = Sampling::kBallsInBins;
  {
    RowSums layer(*mesh);
    auto run = begin(layer, options(), bins);
    take(run, layer, 3);  // a checkpoint stands after two
    EXPECT_EQ(ledger().entries.size(), 1U);
    EXPECT_LT(run.epsilon(), run.plan().promised_epsilon().value());
  }
  RowSums layer(*mesh);
  auto limited = options(/*resume=*/true);
  limited.epsilon_limit = DpPlan::make(bins).promised_epsilon();
  auto run = begin(layer, limited, bins);
  EXPECT_EQ(run.course().done(), 2);
  take(run, layer);
  const auto report = run.finish();
  const auto lines = ledger();
  ASSERT_EQ(lines.entries.size(), 2U) << "the limit has room for one more pass";
  EXPECT_EQ(lines.entries[1].step, 2) << "which begins where the session does";
  EXPECT_EQ(run.course().done(), 6);
  EXPECT_EQ(run.releases(), 2);
  EXPECT_EQ(report.at("guarantee").at("epsilon").at("upper").get<double>(), run.plan().promised_epsilon().value());
  EXPECT_TRUE(report.at("guarantee").at("applies").get<bool>());
  EXPECT_TRUE(report.at("sampler").at("executed_is_assumed").get<bool>());
  for (const auto& finding : accountant::verify_report(lines, report))
    EXPECT_NE(finding.verdict, accountant::Finding::Verdict::kDiffers) << finding.what;
  RowSums again(*mesh);
  EXPECT_TRUE(begin(again, limited, bins).was_finished());
}

// Exactly at a pass's end nothing is lost.
TEST_F(PrivateRunTest, WithBallsInBinsGoesOnAfterAWholePass) {
  const auto mesh = fsdp::Mesh::single();
  auto bins = config(8);
  bins.expected_batch = 3;
  bins.sampling = Sampling::kBallsInBins;
  {
    RowSums layer(*mesh);
    auto run = begin(layer, options(), bins);
    take(run, layer, 4);
    (void)run.next();  // writes the checkpoint; nothing of the next pass is charged
  }
  RowSums layer(*mesh);
  auto run = begin(layer, options(/*resume=*/true), bins);
  take(run, layer);
  EXPECT_EQ(run.course().done(), 8);
  EXPECT_EQ(ledger().entries.size(), 2U);
}

// ---------------------------------------------------------------------------------------------------------------------
// Another run than the one that began

struct Change {
  const char* name;
  std::function<void(RunOptions&, DpConfig&)> change;
  float first_weight;
  const char* message;
};
void PrintTo(const Change& c, std::ostream* out) { *out << c.name; }
const Change kChanges[] = {
    {"another_clip_norm", [](RunOptions&, DpConfig& c) { c.clip_norm = accountant::ClipNorm(1); }, 0,
     "clip_norm is 0.5"},
    {"another_sampling", [](RunOptions&, DpConfig& c) { c.sampling = Sampling::kBallsInBins; }, 0, "sampl"},
    {"more_units", [](RunOptions&, DpConfig& c) { c.units = 13; }, 0, "units is 12"},
    {"metrics_without_noise", [](RunOptions& o, DpConfig&) { o.nonprivate_metrics = true; }, 0,
     "without noise are shown"},
    {"a_part_of_the_callers",
     [](RunOptions& o, DpConfig&) {
       o.parts = {{"--lr", "2", Part::Binds::kRun}};
     },
     0, "--lr must"},
    {"other_weights", [](RunOptions&, DpConfig&) {}, 1, "the weights to start from must"},
};
class ResumedRun : public PrivateRunTest, public testing::WithParamInterface<Change> {};
TEST_P(ResumedRun, IsRefusedBeforeItsFirstCheckpointAndLeftAsItIs) {
  const auto mesh = fsdp::Mesh::single();
  {
    RowSums layer(*mesh);
    auto run = begin(layer, options());
    take(run, layer, 1);
  }
  const std::string head = ledger().head;
  auto changed = options(/*resume=*/true);
  auto plan = config();
  GetParam().change(changed, plan);
  RowSums layer(*mesh, GetParam().first_weight);
  EXPECT_THAT([&] { begin(layer, changed, plan); }, ThrowsMessage<fsdp::AgreedFailure>(HasSubstr(GetParam().message)));
  EXPECT_EQ(ledger().head, head);
}
INSTANTIATE_TEST_SUITE_P(Changes, ResumedRun, testing::ValuesIn(kChanges),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_F(PrivateRunTest, RanksThatDifferAreRefusedAndNothingIsWritten) {
  std::mutex mutex;
  std::vector<std::string> said;
  const auto expect_refusal = [&](const char* message,
                                  const std::function<void(RunOptions&, DpConfig&, float&)>& change) {
    said.clear();
    tests::run_ranks(2, [&](fsdp::Mesh& mesh) {
      auto own = options();
      auto plan = config();
      float first = 0;
      if (mesh.rank() == 1) change(own, plan, first);
      RowSums layer(mesh, first);
      try {
        begin(layer, own, plan);
      } catch (const fsdp::AgreedFailure& failure) {
        const std::lock_guard lock(mutex);
        said.emplace_back(failure.what());
      }
    });
    EXPECT_THAT(said, testing::SizeIs(2)) << message;
    EXPECT_THAT(said, testing::Each(HasSubstr(message)));
    EXPECT_FALSE(std::filesystem::exists(folder()));
  };
  expect_refusal("noise_multiplier on rank 1",
                 [](RunOptions&, DpConfig& c, float&) { c.noise_multiplier = accountant::NoiseMultiplier(0.001); });
  expect_refusal("clip_norm on rank 1",
                 [](RunOptions&, DpConfig& c, float&) { c.clip_norm = accountant::ClipNorm(9); });
  expect_refusal("whether the run is resumed on rank 1", [](RunOptions& o, DpConfig&, float&) { o.resume = true; });
  expect_refusal("the plan of recording on rank 1",
                 [](RunOptions& o, DpConfig&, float&) { o.recording.streamed = {true}; });
  expect_refusal("the texts on rank 1", [](RunOptions& o, DpConfig&, float&) { o.parts = {{"the texts", "other"}}; });
}

TEST_F(PrivateRunTest, RanksThatWouldDealTheBatchOutOtherwiseEndBeforeItIsCharged) {
  struct Case {
    std::vector<int64_t> lengths;  // rank 1's; rank 0 has 3 for each unit
    int64_t microbatch;            // rank 1's; rank 0 has 5
    const char* says;
  };
  std::vector<int64_t> one_longer(kUnits, 3);
  one_longer[7] = 4;
  for (const Case& c : {Case{one_longer, 5, "the units' lengths on"}, Case{{}, 5, "the units' lengths on"},
                        Case{std::vector<int64_t>(kUnits - 1, 3), 5, "the units' lengths on"},
                        Case{std::vector<int64_t>(kUnits, 3), 1, "the units at a time on"}}) {
    std::filesystem::remove_all(folder());
    std::atomic<int> refused{0};
    tests::run_ranks(2, [&](fsdp::Mesh& mesh) {
      RowSums layer(mesh);
      auto run = begin(layer, options());
      const bool first = mesh.rank() == 0;
      auto step = run.next();
      try {
        step->add(first ? std::vector<int64_t>(kUnits, 3) : c.lengths, first ? 5 : c.microbatch,
                  [&](std::span<const int64_t> units, const RecorderPtr& r) { return layer.loss(units, r); });
      } catch (const fsdp::AgreedFailure& failure) {
        EXPECT_THAT(failure.what(), HasSubstr(c.says));
        ++refused;
      }
    });
    EXPECT_EQ(refused, 2);
    EXPECT_TRUE(ledger().entries.empty());
  }
}

}  // namespace
}  // namespace ghostshard::dp
