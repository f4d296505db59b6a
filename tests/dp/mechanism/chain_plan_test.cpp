// A plan with a noise chain: its rate, its rounds, its promise, what it refuses, and what it is good for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dp/mechanism/plan.h"
#include "dp/planning/chain_decay.h"
#include "tests/dp/mechanism/spoilt_plans.h"
#include "tests/support/keys.h"

namespace ghostshard::tests {
namespace {

constexpr dp::NoiseChain kChain{.steps = 4, .decay = 0.75F};

const SpoiltPlan kBad[] = {
    {"more_steps_than_the_run", [](auto& c) { c.steps = 3, c.noise_chain = kChain; },
     "a noise chain's steps must be at most the steps (3), got 4"},
    {"more_steps_than_batches", [](auto& c) { c.expected_batch = 4000, c.noise_chain = kChain; },
     "a noise chain's steps must be at most n/B (2)"},
    {"where_places_change", [](auto& c) { c.adjacency = accountant::Adjacency::kAddOrRemove, c.noise_chain = kChain; },
     "noise chains are accounted under zero-out adjacency alone, got add-or-remove"},
    {"no_decay", [](auto& c) { c.noise_chain = {.steps = 4, .decay = 0}; }, "a noise chain's decay must be"},
    {"a_decay_of_nothing", [](auto& c) { c.noise_chain = {.steps = 1, .decay = 0.5F}; }, "a noise chain's decay must"},
    {"with_bands", [](auto& c) { c.noise_bands.ratios = {0.5F}, c.noise_chain = kChain; },
     "noise bands and noise chains cannot be combined"},
    {"with_bins", [](auto& c) { c.sampling = dp::Sampling::kBallsInBins, c.noise_chain = kChain; },
     "cannot be combined with noise chains"},
    {"with_a_largest_batch", [](auto& c) { c.maximum_batch = 600, c.noise_chain = kChain; },
     "noise chains are derived for batches that are not truncated"},
    {"with_a_clip_norm_that_adapts", [](auto& c) { c.clip_quantile.emplace(), c.noise_chain = kChain; },
     "noise chains are derived for one clip norm"},
};
class BadChainPlan : public ::testing::TestWithParam<SpoiltPlan> {};

TEST_P(BadChainPlan, IsRefusedWithRuleAndValue) { expect_refused(GetParam(), good_config()); }
INSTANTIATE_TEST_SUITE_P(Plan, BadChainPlan, ::testing::ValuesIn(kBad), spoilt_part);

dp::DpPlan plan_of(const dp::NoiseChain& chain, const dp::NoiseBands& bands = {}) {
  dp::DpConfig config = good_config();
  config.steps = 25;
  config.noise_chain = chain;
  config.noise_bands = bands;
  return dp::DpPlan::make(config);
}

// A chain and as many bands have one sampling and one cost, to the bit.
TEST(ChainPlan, ChargesWhatAsManyBandsCost) {
  const auto chained = plan_of(kChain), banded = plan_of({}, {.ratios = {0.6F, 0.5F, 0.4F}});
  EXPECT_EQ(chained.sampling_rate().value(), 4 * 500.0 / 10000.0);
  EXPECT_EQ(chained.noise_multiplier().value(), banded.noise_multiplier().value());
  EXPECT_EQ(chained.event(), banded.event());
  EXPECT_EQ(chained.rounds().groups(), 4);
  for (const int64_t steps : {24, 25, 28}) {
    EXPECT_EQ(chained.epsilon_after(steps).upper, banded.epsilon_after(steps).upper) << steps;
  }
  const auto key = key_of(3);
  const auto sampler = chained.sampler(key, 0, 1);
  for (int64_t step = 0; step < 9; ++step) {
    for (const int64_t unit : sampler.draw({step})) EXPECT_EQ(unit % 4, step % 4);
  }
}

TEST(ChainPlan, TellsOptimizersTheMeanVariance) {
  const auto white = plan_of({}), chained = plan_of(kChain);
  const double sigmas = chained.noise_multiplier().value() / white.noise_multiplier().value();
  EXPECT_NEAR(chained.release_variance() / white.release_variance(), kChain.variance() * sigmas * sigmas, 1e-12);
}

TEST(ChainPlan, IsResumedWithTheLedgersOwn) {
  dp::DpConfig config = good_config();
  config.noise_chain = kChain;
  const auto begun = dp::DpPlan::make(config);
  accountant::LedgerContents ledger{.header = nlohmann::json::parse(begun.ledger_header(key_of(3)).dump())};
  EXPECT_EQ(ledger.header.at("sampler"), "cyclic-poisson");
  EXPECT_EQ(ledger.header.at("sampling_groups"), 4);
  EXPECT_EQ(ledger.header.at("noise_chain"), nlohmann::json({{"steps", 4}, {"decay", 0.75}}));
  config.noise_chain.decay = 0.7501F;  // as another machine might find it
  EXPECT_EQ(dp::DpPlan::resume(config, ledger).config().noise_chain, kChain);
  const auto refuses = [&](const dp::NoiseChain& chain, const dp::NoiseBands& bands) {
    config.noise_chain = chain;
    config.noise_bands = bands;
    EXPECT_THROW(dp::DpPlan::resume(config, ledger), std::invalid_argument);
  };
  refuses({.steps = 5, .decay = 0.75F}, {});
  refuses({}, {});
  refuses({}, {.ratios = {0.5F, 0.5F, 0.5F}});
}

// The recipe of E2E at epsilon 8 (n 42,061, B 1,024, T 411): the root mean squared noise of prefix sums at the same
// epsilon, over that of white noise.
TEST(ChainPlan, HasLessNoiseInPrefixSumsThanWhiteNoiseAtTheSameEpsilon) {
  const dp::BandWorkload sums{.rates = std::vector<double>(411, 1.0), .momentum = 0};
  const auto noise = [&](const dp::NoiseChain& chain) {
    dp::DpConfig config{.units = 42'061, .expected_batch = 1024, .steps = 411};
    config.noise_chain = chain;
    config.target_epsilon = accountant::Epsilon(8);
    config.delta = accountant::Delta(8e-6);
    const double sigma = dp::DpPlan::make(config).noise_multiplier().value();
    return sigma * std::sqrt(dp::chain_error(chain.steps, static_cast<double>(chain.decay), sums));
  };
  const double white = noise({});
  for (const int64_t steps : {4, 16}) {
    const auto decay = static_cast<float>(dp::optimal_chain_decay(steps, sums));
    EXPECT_LT(noise({.steps = steps, .decay = decay}) / white, 0.82) << steps;
  }
}

}  // namespace
}  // namespace ghostshard::tests
