// A plan with a largest batch: its rate, its event, its promise, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dp/mechanism/plan.h"
#include "tests/dp/mechanism/spoilt_plans.h"
#include "tests/support/keys.h"

namespace ghostshard::tests {
namespace {

const SpoiltPlan kBad[] = {
    {"smaller_than_the_mean", [](auto& c) { c.maximum_batch = c.expected_batch - 1; },
     "the largest batch must be at least the expected batch (500), got 499"},
    {"larger_than_the_data", [](auto& c) { c.maximum_batch = c.units + 1; },
     "the largest batch must be at most the number of units (10000), got 10001"},
    {"with_noise_bands",
     [](auto& c) {
       c.maximum_batch = 600;
       c.noise_bands.ratios = {0.5F};
     },
     "cannot be combined with a largest batch"},
    {"with_a_clip_norm_that_adapts",
     [](auto& c) {
       c.maximum_batch = 600;
       c.clip_quantile = dp::ClipQuantile::around(c.clip_norm, 500);
     },
     "cannot be combined with a largest batch"},
    {"with_balls_in_bins",
     [](auto& c) {
       c.maximum_batch = 600;
       c.sampling = dp::Sampling::kBallsInBins;
     },
     "cannot be combined with a largest batch"},
    {"under_replace_one",
     [](auto& c) {
       c.maximum_batch = 600;
       c.adjacency = accountant::Adjacency::kReplaceOne;
     },
     "zero-out"},
};
class BadTruncatedPlan : public ::testing::TestWithParam<SpoiltPlan> {};

TEST_P(BadTruncatedPlan, IsRefusedWithRuleAndValue) { expect_refused(GetParam(), good_config()); }
INSTANTIATE_TEST_SUITE_P(Plan, BadTruncatedPlan, ::testing::ValuesIn(kBad), spoilt_part);

TEST(TruncatedPlan, ChargesWhatItsSamplerDoes) {
  dp::DpConfig config = good_config();
  config.maximum_batch = 560;
  const auto plan = dp::DpPlan::make(config);
  const accountant::Event expected = accountant::TruncatedPoissonGaussianEvent{
      config.units, accountant::SamplingRate(0.05), 560, plan.noise_multiplier()};
  EXPECT_EQ(plan.event(), expected);
  EXPECT_EQ(plan.divisor(), 500);
  EXPECT_LE(plan.epsilon_after(config.steps).upper, 4.0);
  EXPECT_GT(plan.epsilon_after(config.steps).upper, 3.99) << "noise is wasted";
  const auto key = key_of(2);
  const auto sampler = plan.sampler(key, 0, 1);
  size_t most = 0;
  for (int64_t step = 0; step < 200; ++step) most = std::max(most, sampler.draw({step}).size());
  EXPECT_EQ(most, 560U);  // 2.8 deviations above the mean: among 200 draws some are cut
}

// Batches of few units in many: B/n is no multiple of 2^-64, and what is accounted is what the coins have.
TEST(TruncatedPlan, AccountsTheCoinsOwnRate) {
  dp::DpConfig config = good_config();
  config.units = 3'000'000'007;
  config.expected_batch = 10;
  config.maximum_batch = 40;
  const auto plan = dp::DpPlan::make(config);
  const double rate = plan.sampling_rate().value();
  EXPECT_EQ(rate, dp::coin_rate(plan.sampling_rate()).value());
  EXPECT_NEAR(rate, 10.0 / 3'000'000'007.0, 0x1p-64);
  EXPECT_EQ(std::get<accountant::TruncatedPoissonGaussianEvent>(plan.event()).q.value(), rate);
}

TEST(TruncatedPlan, CostsMoreNoiseTheMoreItCuts) {
  dp::DpConfig config = good_config();
  double before = dp::DpPlan::make(config).noise_multiplier().value();
  const double poisson = before;
  for (const int64_t cap : {10'000, 580, 540, 500}) {
    config.maximum_batch = cap;
    const double noise = dp::DpPlan::make(config).noise_multiplier().value();
    EXPECT_GE(noise, before * (1 - 2e-7)) << cap;  // both are found to 1e-7
    if (cap == 10'000) {
      EXPECT_LE(noise, poisson * (1 + 2e-7));
    }
    before = noise;
  }
  EXPECT_GT(before, 1.05 * poisson);
}

TEST(TruncatedPlan, IsResumedWithTheSameCap) {
  dp::DpConfig config = good_config();
  config.maximum_batch = 560;
  const auto begun = dp::DpPlan::make(config);
  accountant::LedgerContents ledger{.header = nlohmann::json::parse(begun.ledger_header(key_of(3)).dump())};
  EXPECT_EQ(ledger.header.at("sampler"), "truncated-poisson");
  EXPECT_EQ(ledger.header.at("maximum_batch"), 560);
  ledger.entries.push_back({.sequence = 1, .step = 0, .attempt = 0, .event = begun.event(), .hash = {}});
  EXPECT_EQ(dp::DpPlan::resume(config, ledger).event(), begun.event());
  const auto refused = [&](std::optional<int64_t> cap, const char* message) {
    config.maximum_batch = cap;
    EXPECT_THAT([&] { dp::DpPlan::resume(config, ledger); },
                testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr(message)));
  };
  refused(561, "maximum_batch is 560, here it would be 561");
  refused(std::nullopt, "maximum_batch is 560, here it would be null");
}

}  // namespace
}  // namespace ghostshard::tests
