// A plan with noise from buffers: its sampler, its rows, its promise, what it refuses, and what it is good for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dp/mechanism/plan.h"
#include "dp/planning/blt_coefficients.h"
#include "tests/dp/mechanism/spoilt_plans.h"
#include "tests/support/keys.h"

namespace ghostshard::tests {
namespace {

const dp::NoiseBlt kBlt{.outputs = {0.2F, 0.1F}, .decays = {0.5F, 0.96875F}};

const SpoiltPlan kBad[] = {
    {"where_places_change", [](auto& c) { c.adjacency = accountant::Adjacency::kAddOrRemove, c.noise_blt = kBlt; },
     "noise buffers are accounted under zero-out adjacency alone, got add-or-remove"},
    {"where_two_records_differ", [](auto& c) { c.adjacency = accountant::Adjacency::kReplaceOne, c.noise_blt = kBlt; },
     "noise buffers are accounted under zero-out adjacency alone, got replace-one"},
    {"too_many_steps", [](auto& c) { c.steps = 1'000'001, c.noise_blt = kBlt; },
     "with noise buffers a run must have at most 100000 steps, got 1000001"},
    {"decays_that_do_not", [](auto& c) { c.noise_blt = {.outputs = {0.5F}, .decays = {1.0F}}; }, "a decay must be"},
    {"one_without_a_decay", [](auto& c) { c.noise_blt = {.outputs = {0.5F}}; }, "each output must have a decay"},
    {"with_bands", [](auto& c) { c.noise_bands.ratios = {0.5F}, c.noise_blt = kBlt; },
     "noise buffers cannot be combined with noise bands or noise chains"},
    {"with_a_chain",
     [](auto& c) {
       c.noise_chain = {4, 0.5F}, c.noise_blt = kBlt;
     },
     "noise buffers cannot be combined with noise bands or noise chains"},
    {"with_bins", [](auto& c) { c.sampling = dp::Sampling::kBallsInBins, c.noise_blt = kBlt; },
     "cannot be combined with noise buffers"},
    {"with_a_largest_batch", [](auto& c) { c.maximum_batch = 600, c.noise_blt = kBlt; },
     "noise buffers are derived for batches that are not truncated"},
    {"with_a_clip_norm_that_adapts", [](auto& c) { c.clip_quantile.emplace(), c.noise_blt = kBlt; },
     "noise buffers are derived for one clip norm"},
};
class BadBltPlan : public ::testing::TestWithParam<SpoiltPlan> {};

TEST_P(BadBltPlan, IsRefusedWithRuleAndValue) { expect_refused(GetParam(), good_config()); }
INSTANTIATE_TEST_SUITE_P(Plan, BadBltPlan, ::testing::ValuesIn(kBad), spoilt_part);

dp::DpConfig config_of(int64_t steps = 25, const dp::NoiseBlt& blt = kBlt) {
  dp::DpConfig config = good_config();
  config.steps = steps;
  config.noise_blt = blt;
  return config;
}

// Every unit in every b-th step, whatever the key is, and in no other.
TEST(CyclicPlan, TakesEachUnitInEveryTwentiethStep) {
  dp::DpConfig config = config_of();
  for (const int64_t units : {10'000, 9'999, 9'501}) {  // batches of 500: 20 groups
    config.units = units;
    const auto plan = dp::DpPlan::make(config);
    const auto one = key_of(3), other = key_of(4);
    std::vector<int64_t> times(static_cast<size_t>(units), 0);
    for (int64_t step = 0; step < 25; ++step) {
      const auto drawn = plan.sampler(one, 0, 1).draw({step});
      EXPECT_EQ(drawn, plan.sampler(other, 0, 1).draw({step, 7}));
      EXPECT_LE(drawn.size(), 500U);
      for (const int64_t unit : drawn) {
        EXPECT_EQ(unit % 20, step % 20);
        if (step < 20) ++times[static_cast<size_t>(unit)];
      }
    }
    EXPECT_THAT(times, testing::Each(1)) << units;
  }
}

TEST(BltPlan, KeepsItsTargetAndIsOneGaussian) {
  const auto plan = dp::DpPlan::make(config_of());
  EXPECT_EQ(plan.config().noise_blt.separation, 20);
  EXPECT_EQ(plan.config().noise_blt.steps, 25);
  EXPECT_LE(plan.epsilon_after(25).upper, 4.0);
  EXPECT_GE(plan.epsilon_after(25).upper, 4.0 - 1e-5);
  const auto whole = plan.accountant();
  whole->compose(plan.event(), 1);
  EXPECT_NEAR(plan.epsilon_after(25).upper, whole->epsilon(plan.delta()).upper, 1e-9);
  EXPECT_LT(plan.epsilon_after(20).upper, plan.epsilon_after(21).upper);
  EXPECT_EQ(plan.steps_within(plan.promised_epsilon(), plan.rounds(), 0, 25), 25);
}

// After a crash a chain begins, with prices of its own; what was charged stays charged.
TEST(BltPlan, ChargesASessionsRowsBesideThoseBefore) {
  // Rows 1, 0.9, 0.45, …, and from the 20th on again: eight rows leave room for five, which cost as the last five do.
  auto plan = dp::DpPlan::make(config_of(25, {.outputs = {0.9F}, .decays = {0.5F}}));
  plan.begin_session_at(5);
  accountant::Rounds charged = plan.rounds();
  for (int64_t row = 0; row < 8; ++row) charged.add(row);  // steps 0 to 7, of which the last three are lost
  EXPECT_EQ(plan.round_of(5), 0);
  const auto engine = plan.accountant();
  plan.charge(*engine, charged);
  for (int64_t step = 5; step < 9; ++step) engine->compose(plan.event_at(step), 1);
  EXPECT_EQ(engine->epsilon(plan.delta()).upper, plan.epsilon_after(charged, 5, 4).upper);
  const int64_t within = plan.steps_within(plan.promised_epsilon(), charged, 5, 20);
  EXPECT_EQ(within, 5);
  EXPECT_LE(plan.epsilon_after(charged, 5, within).upper, 4);
  EXPECT_GT(plan.epsilon_after(charged, 5, within + 1).upper, 4);
}

TEST(BltPlan, TellsOptimizersTheVarianceOfItsLastStep) {
  const auto plan = dp::DpPlan::make(config_of());
  const double deviation = plan.noise_multiplier().value() / 500;
  EXPECT_NEAR(plan.release_variance() / (deviation * deviation), plan.config().noise_blt.variance(), 1e-12);
}

TEST(BltPlan, IsResumedWithTheLedgersOwn) {
  dp::DpConfig config = config_of();
  const auto begun = dp::DpPlan::make(config);
  accountant::LedgerContents ledger{.header = nlohmann::json::parse(begun.ledger_header(key_of(3)).dump())};
  EXPECT_EQ(ledger.header.at("sampler"), "cyclic");
  EXPECT_FALSE(ledger.header.contains("sampling_rate"));
  EXPECT_EQ(ledger.header.at("noise_blt").at("separation"), 20);
  ledger.entries.push_back({.sequence = 1, .event = begun.event_at(0)});
  config.noise_blt.decays[1] = 0.96876F;  // as another machine might find it
  EXPECT_EQ(dp::DpPlan::resume(config, ledger).config().noise_blt, begun.config().noise_blt);
  ledger.entries.push_back({.sequence = 2, .step = 1, .event = begun.event()});
  EXPECT_THAT([&] { (void)dp::DpPlan::resume(config, ledger); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("charged as the row of its chain")));
  ledger.entries.pop_back();
  config.noise_blt = {.outputs = {0.5F}, .decays = {0.5F}};
  EXPECT_THROW(dp::DpPlan::resume(config, ledger), std::invalid_argument);
  config.noise_blt = {};
  EXPECT_THROW(dp::DpPlan::resume(config, ledger), std::invalid_argument);
}

// Root mean squared noise of prefix sums at one epsilon, over that of white noise with Poisson samples.
double noise_beside_white(dp::DpConfig config, double epsilon, int64_t buffers) {
  config.target_epsilon = accountant::Epsilon(epsilon);
  const double white = dp::DpPlan::make(config).noise_multiplier().value();
  const dp::BandWorkload sums{.rates = std::vector<double>(static_cast<size_t>(config.steps), 1.0), .momentum = 0};
  const double plain = dp::band_error_and_slopes({}, sums).error;
  const int64_t apart = (config.units + config.expected_batch - 1) / config.expected_batch;
  const auto blt = dp::optimal_blt(buffers, apart, sums);
  config.noise_blt.outputs.assign(blt.outputs.begin(), blt.outputs.end());
  config.noise_blt.decays.assign(blt.decays.begin(), blt.decays.end());
  const double sigma = dp::DpPlan::make(config).noise_multiplier().value();
  return sigma / white * std::sqrt(dp::blt_error_and_slopes(blt, apart, sums).error / plain);
}

// The recipes of a language model on E2E (n 42,061, B 1,024, T 411) and of the demo (n 10,717, B 512, T 60): the more
// epsilon is given, the less amplification by sampling is worth.
TEST(BltPlan, HasLessNoiseInPrefixSumsThanWhiteNoiseWhereEpsilonIsLarge) {
  dp::DpConfig e2e{.units = 42'061, .expected_batch = 1024, .steps = 411, .delta = accountant::Delta(8e-6)};
  dp::DpConfig demo{.units = 10'717, .expected_batch = 512, .steps = 60, .delta = accountant::Delta(1e-6)};
  EXPECT_LT(noise_beside_white(e2e, 8, 3), 0.75);
  EXPECT_LT(noise_beside_white(demo, 8, 3), 0.72);
  EXPECT_GT(noise_beside_white(e2e, 1, 3), 1.2) << "at epsilon 1 white noise is better";
}

}  // namespace
}  // namespace ghostshard::tests
