// A plan whose clip norm adapts: what it spends, what it is resumed with, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/dp/mechanism/spoilt_plans.h"
#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

using accountant::ClipNorm;
using accountant::NoiseMultiplier;

dp::DpConfig good() {
  dp::DpConfig config = good_config();
  config.clip_quantile = dp::ClipQuantile::around(config.clip_norm, 500);
  return config;
}

TEST(AdaptivePlan, SpendsItsTargetOnBothParts) {
  for (const double count_noise : {0.6, 25.0}) {
    dp::DpConfig config = good();
    config.clip_quantile->count_noise = NoiseMultiplier(count_noise);
    const auto plan = dp::DpPlan::make(config);
    config.clip_quantile.reset();
    const auto flat = dp::DpPlan::make(config);
    EXPECT_GT(plan.noise_multiplier(), flat.noise_multiplier());
    EXPECT_EQ(plan.event(), accountant::Event(accountant::AdaptiveClippingEvent{
                                plan.sampling_rate(), plan.noise_multiplier(), NoiseMultiplier(count_noise)}));
    EXPECT_LE(plan.epsilon_after(100).upper, 4.0);
    EXPECT_NEAR(plan.epsilon_after(100).upper, flat.epsilon_after(100).upper, 1e-6) << "noise is wasted";
    EXPECT_EQ(plan.steps_within(plan.promised_epsilon(), plan.rounds(), 0, 100), 100);
    EXPECT_EQ(plan.release_variance(), 0) << "which steps do not have in common";
  }
}

TEST(AdaptivePlan, IsResumedWithItsOwnNumbersAlone) {
  for (const bool calibrated : {true, false}) {
    dp::DpConfig config = good();
    if (!calibrated) config.target_epsilon.reset(), config.noise_multiplier = NoiseMultiplier(0.7);
    const auto begun = dp::DpPlan::make(config);
    const accountant::LedgerContents ledger{.header = nlohmann::json::parse(begun.ledger_header(key_of(3)).dump())};
    EXPECT_EQ(ledger.header.at("noise_multiplier"), begun.noise_multiplier().value());
    auto plan = dp::DpPlan::resume(config, ledger);
    EXPECT_EQ(plan.event(), begun.event());
    plan.go_on_with(ClipNorm(0.25));
    EXPECT_EQ(plan.clip_norm().value(), 0.25);
    EXPECT_EQ(plan.public_constants(), begun.public_constants());
    EXPECT_THROW(plan.go_on_with(ClipNorm(1e9)), std::invalid_argument) << "beyond its limits";
    for (const auto& change : std::vector<std::function<void(dp::DpConfig&)>>{
             [](auto& c) { c.clip_quantile->target = 0.6; }, [](auto& c) { c.clip_quantile->rate = 0.1; },
             [](auto& c) { c.clip_quantile->count_noise = NoiseMultiplier(30); },
             [](auto& c) { c.clip_quantile->most = ClipNorm(5); }, [](auto& c) { c.clip_quantile.reset(); }}) {
      dp::DpConfig other = config;
      change(other);
      EXPECT_THROW(dp::DpPlan::resume(other, ledger), std::invalid_argument);
    }
  }
  EXPECT_THROW(plan_without_noise(10, 1).go_on_with(ClipNorm(1)), std::invalid_argument) << "it does not adapt";
}

const SpoiltPlan kBad[] = {
    {"layers_of_their_own", [](auto& c) { c.clipping = dp::Clipping::kPerLayer; }, "it needs flat clipping"},
    {"no_clipping_at_all", [](auto& c) { c.clipping = dp::Clipping::kAutomatic; }, "it needs flat clipping"},
    {"noise_bands", [](auto& c) { c.noise_bands.ratios = {0.5F}; }, "cannot be combined with one that adapts"},
    {"quantile_of_nothing", [](auto& c) { c.clip_quantile->target = 0; }, "strictly between 0 and 1, got 0"},
    {"quantile_of_all", [](auto& c) { c.clip_quantile->target = 1; }, "strictly between 0 and 1, got 1"},
    {"quantile_of_no_number", [](auto& c) { c.clip_quantile->target = NAN; }, "strictly between 0 and 1"},
    {"no_rate", [](auto& c) { c.clip_quantile->rate = 0; }, "learning rate must be finite and > 0"},
    {"limits_above", [](auto& c) { c.clip_quantile->least = ClipNorm(2); }, "within its limits, from 2"},
    {"limits_below", [](auto& c) { c.clip_quantile->most = ClipNorm(0.5); }, "to 0.5, got 1"},
    {"count_that_takes_it_all",
     [](auto& c) {
       c.target_epsilon.reset(), c.noise_multiplier = NoiseMultiplier(1);
       c.clip_quantile->count_noise = NoiseMultiplier(0.5);
     },
     "must be more than half the noise multiplier of 1.0"},
};
class BadAdaptivePlan : public ::testing::TestWithParam<SpoiltPlan> {};
TEST_P(BadAdaptivePlan, IsRefusedWithRuleAndValue) { expect_refused(GetParam(), good()); }
INSTANTIATE_TEST_SUITE_P(Plan, BadAdaptivePlan, ::testing::ValuesIn(kBad), spoilt_part);

}  // namespace
}  // namespace ghostshard::tests
