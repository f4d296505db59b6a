// Balls-in-bins sampling: the units' places are what is accounted, and a pass is charged once, whole, before its first
// step.
#include "dp/mechanism/bins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "tests/dp/mechanism/released_noise.h"
#include "tests/dp/mechanism/spoilt_plans.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::tests {
namespace {

dp::DpConfig bins_config(int64_t units = 1000, int64_t batch = 130, int64_t steps = 24) {
  return {.units = units,
          .expected_batch = batch,
          .steps = steps,
          .sampling = dp::Sampling::kBallsInBins,
          .noise_multiplier = accountant::NoiseMultiplier(1.0)};
}

TEST(Bins, EachUnitIsInExactlyOneStepOfEachPass) {
  const auto key = key_of(3);
  const auto sampler = dp::DpPlan::make(bins_config()).sampler(key, 0, 1);
  std::vector<int64_t> everybody(1000);
  std::iota(everybody.begin(), everybody.end(), 0);
  for (const int64_t first : {0, 8, 16}) {
    std::vector<int64_t> seen;
    for (int64_t step = first; step < first + 8; ++step) {  // 1000/130 rounded up
      const auto drawn = sampler.draw({step});
      EXPECT_TRUE(std::is_sorted(drawn.begin(), drawn.end()));
      seen.insert(seen.end(), drawn.begin(), drawn.end());
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, everybody) << "pass from step " << first;
  }
}

TEST(Bins, EachStepIsAsLikelyForEachUnitAndUnitsAreIndependent) {
  const auto key = key_of(9);
  constexpr int64_t kPasses = 400, kEach = 200, kBins = 7;
  const dp::BinPasses passes{.steps = kBins};
  std::vector<double> in_bin(kBins), of_unit(kEach);  // of_unit: how often in the first bin
  double pairs = 0, repeats = 0;
  std::vector<int64_t> before(kEach, -1);
  for (int64_t pass = 0; pass < kPasses; ++pass) {
    std::vector<int64_t> bin_of(kEach);
    for (int64_t bin = 0; bin < kBins; ++bin)
      for (const int64_t unit : passes.units_of(key, {pass * kBins + bin}, 0, kEach)) {
        bin_of[static_cast<size_t>(unit)] = bin;
        in_bin[static_cast<size_t>(bin)] += 1;
        if (bin == 0) of_unit[static_cast<size_t>(unit)] += 1;
      }
    for (int64_t unit = 0; unit + 1 < kEach; unit += 2)
      pairs += bin_of[static_cast<size_t>(unit)] == bin_of[static_cast<size_t>(unit) + 1] ? 1 : 0;
    for (size_t unit = 0; unit < kEach; ++unit) repeats += bin_of[unit] == before[unit] ? 1 : 0;
    before = bin_of;
  }
  // Binomial counts within 5 standard deviations; 200 units: 1e-4 of a false alarm.
  const double q = 1.0 / kBins;
  const auto within = [&](double count, double trials) {
    EXPECT_NEAR(count / trials, q, 5 * std::sqrt(q * (1 - q) / trials));
  };
  for (const double count : in_bin) within(count, kPasses * kEach);
  for (const double count : of_unit) within(count, kPasses);
  within(pairs, kPasses * kEach / 2);
  within(repeats, (kPasses - 1) * kEach);
}

TEST(Bins, PlacesFollowFromKeyRunPassAndAttempt) {
  const auto key = key_of(1), other = key_of(2);
  const dp::BinPasses passes{.steps = 4};
  const auto draw = [&](const dp::RunKey& with, const dp::StepId& step) { return passes.units_of(with, step, 0, 500); };
  EXPECT_EQ(draw(key, {1}), draw(key, {1}));
  EXPECT_NE(draw(key, {1}), draw(other, {1}));
  EXPECT_NE(draw(key, {1}), draw(key, {5})) << "the same bin of the next pass";
  EXPECT_NE(draw(key, {1}), draw(key, {1, 1})) << "another attempt deals anew";
  const dp::BinPasses later{.steps = 4, .first = 1};
  EXPECT_NE(later.units_of(key, {1}, 0, 500), draw(key, {1})) << "a session's first step begins a pass";
  EXPECT_EQ(later.pass_of({7, 2}).step, 5);
  EXPECT_EQ(later.pass_of({7, 2}).attempt, 2);
  EXPECT_THROW(later.pass_of({0}), std::invalid_argument);
}

TEST(Bins, RanksThatShareTheDrawAgree) {
  const auto key = key_of(4);
  const auto plan = dp::DpPlan::make(bins_config(10'001, 900));
  const auto whole = plan.sampler(key, 0, 1).draw({5});
  for (const int64_t cut : {0, 1, 8191, 8192, 8193, 10'001}) {
    auto batch = plan.sampler(key, 0, 1).draw_part({5}, 0, cut);
    const auto rest = plan.sampler(key, 0, 1).draw_part({5}, cut, 10'001);
    batch.insert(batch.end(), rest.begin(), rest.end());
    EXPECT_EQ(batch, whole) << "cut at " << cut;
  }
  std::atomic<int> alike{0};
  run_ranks(3, [&](fsdp::Mesh& mesh) {
    alike += plan.sampler(key, mesh.rank(), 3).draw_together({5}, mesh, /*few=*/0) == whole ? 1 : 0;
  });
  EXPECT_EQ(alike, 3);
}

TEST(BinsPlan, ChargesWholePasses) {
  const auto plan = dp::DpPlan::make(bins_config());
  const accountant::Event pass = accountant::BallsInBinsGaussianEvent{8, accountant::NoiseMultiplier(1.0)};
  EXPECT_EQ(plan.event(), pass);
  const auto engine = plan.accountant();
  engine->compose(pass, 2);
  EXPECT_EQ(plan.epsilon_after(9).upper, engine->epsilon(plan.delta()).upper) << "a pass that has begun counts whole";
  EXPECT_EQ(plan.epsilon_after(16).upper, plan.epsilon_after(9).upper);
  EXPECT_LT(plan.epsilon_after(8).upper, plan.epsilon_after(9).upper);
  EXPECT_TRUE(plan.charges_at(0) && plan.charges_at(8) && !plan.charges_at(1) && !plan.charges_at(7));
  // After a crash in the second pass another one begins, and the promise has room for one.
  auto charged = plan.rounds();
  charged.add(0);
  charged.add(8);
  EXPECT_EQ(plan.steps_within(plan.promised_epsilon(), charged, 10, 14), 8);
  EXPECT_EQ(plan.public_constants().at("sampler"), "balls-in-bins");
  EXPECT_EQ(plan.public_constants().at("bins"), 8);
}

// Else the sampler would deal passes that begin elsewhere than those that are charged.
TEST(BinsPlan, PassesBeginBeforeTheirSamplerIsMade) {
  auto plan = dp::DpPlan::make(bins_config());
  plan.begin_session_at(2);
  EXPECT_TRUE(plan.charges_at(2) && plan.charges_at(10) && !plan.charges_at(8));
  const auto key = key_of(3);
  EXPECT_EQ(plan.sampler(key, 0, 1).units(), 1000);
  EXPECT_THROW(plan.begin_session_at(3), std::logic_error);
}

TEST(BinsPlan, NeedsLessNoiseThanPoissonSampling) {
  auto config = bins_config();
  config.noise_multiplier.reset();
  config.target_epsilon = accountant::Epsilon(3);
  const auto bins = dp::DpPlan::make(config);
  EXPECT_LE(bins.epsilon_after(24).upper, 3);
  config.sampling = dp::Sampling::kPoisson;
  EXPECT_LT(bins.noise_multiplier().value(), 0.95 * dp::DpPlan::make(config).noise_multiplier().value());
}

const SpoiltPlan kBad[] = {
    {"with_bands", [](auto& c) { c.noise_bands.ratios = {0.5F}; }, "cannot be combined with noise bands"},
    {"with_a_clip_norm_that_adapts", [](auto& c) { c.clip_quantile = dp::ClipQuantile{}; },
     "cannot be combined with one that adapts"},
    {"if_a_unit_is_replaced", [](auto& c) { c.adjacency = accountant::Adjacency::kReplaceOne; }, "got replace-one"},
    {"in_too_many_steps", [](auto& c) { c.units = 200'000, c.expected_batch = 1; },
     "at most 100000 steps in a pass, got 200000"},
};
class BadBinsPlan : public ::testing::TestWithParam<SpoiltPlan> {};
TEST_P(BadBinsPlan, IsRefusedWithRuleAndValue) { expect_refused(GetParam(), bins_config()); }
INSTANTIATE_TEST_SUITE_P(Plan, BadBinsPlan, ::testing::ValuesIn(kBad), spoilt_part);

// One mechanism, and the steps that it releases with empty batches.
struct Releases {
  Releases() : model(*mesh, kUnits), clipper(plan.clipper(model)), mechanism(plan.mechanism(model, key, &ledger)) {}
  void release(const dp::StepId& step) {
    auto sum = clipper.begin(mechanism, step);
    (void)mechanism.release(std::move(sum), step);
  }
  std::unique_ptr<fsdp::Mesh> mesh = lone_mesh();
  fsdp::ShardedModel model;
  dp::DpPlan plan = dp::DpPlan::make(bins_config());
  dp::RunKey key = key_of(1);
  TemporaryFolder folder;
  accountant::LedgerWriter ledger =
      accountant::LedgerWriter::create(folder.path() / "ledger.jsonl", plan.ledger_header(key));
  dp::Clipper clipper;
  dp::GaussianMechanism mechanism;
};

TEST(BinsMechanism, ChargesAPassBeforeItsFirstStepAndNoStepOfItAgain) {
  Releases releases;
  for (int64_t step = 0; step < 10; ++step) {
    releases.release({step});
    EXPECT_EQ(releases.ledger.entries(), step < 8 ? 1 : 2) << step;
  }
  EXPECT_EQ(accountant::read_ledger(releases.folder.path() / "ledger.jsonl").entries[1].step, 8);
}

TEST(BinsMechanism, RefusesAStepOfAPassThatWasNotCharged) {
  EXPECT_THROW(Releases().release({3}), std::logic_error);
  Releases other;
  other.release({0});
  other.release({1});
  EXPECT_THROW(other.release({1}), std::logic_error) << "the same bin a second time";
  EXPECT_THROW(other.release({1, 1}), std::logic_error) << "nor as another attempt";
  EXPECT_EQ(other.ledger.entries(), 1);
}

TEST(BinsMechanism, AnotherAttemptIsAPassOfItsOwn) {
  Releases releases;
  releases.release({0});
  releases.release({0, 1});
  EXPECT_EQ(releases.ledger.entries(), 2);
  releases.release({1, 1});
  EXPECT_EQ(releases.ledger.entries(), 2);
  EXPECT_THROW(releases.release({2, 0}), std::logic_error) << "of the pass that was given up";
}

}  // namespace
}  // namespace ghostshard::tests
