// A plan with noise bands: its rate, its rounds, its promise, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dp/mechanism/plan.h"
#include "tests/dp/mechanism/spoilt_plans.h"
#include "tests/support/keys.h"

namespace ghostshard::tests {
namespace {

const SpoiltPlan kBad[] = {
    {"more_bands_than_steps",
     [](auto& c) {
       c.steps = 2, c.noise_bands.ratios = {0.5F, 0.4F};
     },
     "noise bands must be at most the steps (2), got 3"},
    {"more_bands_than_batches",
     [](auto& c) {
       c.expected_batch = 4000;
       c.noise_bands.ratios = {0.5F, 0.4F};
     },
     "noise bands must be at most n/B (2)"},
    {"bands_where_places_change",
     [](auto& c) {
       c.adjacency = accountant::Adjacency::kAddOrRemove;
       c.noise_bands.ratios = {0.5F};
     },
     "under zero-out adjacency alone, got add-or-remove"},
    {"bands_of_no_number", [](auto& c) { c.noise_bands.ratios = {NAN}; }, "each ratio of noise bands"},
};
class BadBandedPlan : public ::testing::TestWithParam<SpoiltPlan> {};

TEST_P(BadBandedPlan, IsRefusedWithRuleAndValue) { expect_refused(GetParam(), good_config()); }
INSTANTIATE_TEST_SUITE_P(Plan, BadBandedPlan, ::testing::ValuesIn(kBad), spoilt_part);

// Against one band at the same target: fewer rounds at a higher rate. 25 steps: seven rounds of the first group.
TEST(BandedPlan, ChargesTheRoundsOfOneGroup) {
  dp::DpConfig config = good_config();
  config.steps = 25;
  config.noise_bands.ratios = {0.6F, 0.5F, 0.4F};
  const auto plan = dp::DpPlan::make(config);
  EXPECT_EQ(plan.sampling_rate().value(), 4 * 500.0 / 10000.0);
  const auto engine = plan.accountant();
  engine->compose(accountant::PoissonGaussianEvent{accountant::SamplingRate(0.2), plan.noise_multiplier()}, 7);
  EXPECT_EQ(plan.epsilon_after(25).upper, engine->epsilon(plan.delta()).upper);
  EXPECT_EQ(plan.epsilon_after(28).upper, plan.epsilon_after(25).upper);
  EXPECT_LT(plan.epsilon_after(24).upper, plan.epsilon_after(25).upper);
  EXPECT_LE(plan.epsilon_after(25).upper, 4.0);
  EXPECT_GT(plan.epsilon_after(25).upper, 3.99) << "noise is wasted";
}

TEST(BandedPlan, KeepsItsPromiseIfStepsAreRepeated) {
  dp::DpConfig config = good_config();
  config.steps = 16;
  config.noise_bands.ratios = {0.6F, 0.5F, 0.4F};
  const auto plan = dp::DpPlan::make(config);
  const auto promise = plan.promised_epsilon();
  auto charged = plan.rounds();
  EXPECT_EQ(plan.steps_within(promise, charged, 0, 16), 16);
  for (int64_t step = 0; step < 7; ++step) charged.add(step);
  // Steps 5 and 6 are lost: groups 1 and 2 have one round too many, which shows with step 13.
  EXPECT_EQ(plan.steps_within(promise, charged, 5, 11), 8);
  EXPECT_EQ(plan.steps_within(promise, charged, 7, 9), 9);
  EXPECT_GT(plan.epsilon_after(charged, 5, 11).upper, promise.value());
}

TEST(BandedPlan, IsResumedWithTheLedgersOwn) {
  dp::DpConfig config = good_config();
  config.noise_bands.ratios = {0.6F, 0.5F};
  const auto begun = dp::DpPlan::make(config);
  accountant::LedgerContents ledger{.header = nlohmann::json::parse(begun.ledger_header(key_of(3)).dump())};
  EXPECT_EQ(ledger.header.at("sampler"), "cyclic-poisson");
  EXPECT_EQ(ledger.header.at("sampling_groups"), 3);
  config.noise_bands.ratios = {0.6001F, 0.5F};  // as another machine might find them
  EXPECT_EQ(dp::DpPlan::resume(config, ledger).config().noise_bands, begun.config().noise_bands);
  config.noise_bands.ratios = {0.6F};
  EXPECT_THROW(dp::DpPlan::resume(config, ledger), std::invalid_argument);
  config.noise_bands.ratios = {};
  EXPECT_THROW(dp::DpPlan::resume(config, ledger), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
