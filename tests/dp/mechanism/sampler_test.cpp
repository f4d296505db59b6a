// Poisson sampling is accounted, so the sampler that runs must be exactly that.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <set>
#include <tuple>

#include "tests/dp/single_layer.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {
namespace {

dp::DpPlan plan_of(int64_t units, int64_t batch) {
  return dp::DpPlan::make(
      {.units = units, .expected_batch = batch, .steps = 10, .noise_multiplier = accountant::NoiseMultiplier(1.0)});
}

TEST(PoissonSampler, IncludesEachUnitWithProbabilityQIndependently) {
  const int64_t n = 1000;
  const int64_t batch = 130;
  const int64_t steps = 400;
  const auto key = key_of(9);
  const auto sampler = plan_of(n, batch).sampler(key, 0, 1);
  std::vector<double> times(static_cast<size_t>(n), 0.0);
  double pairs = 0;  // units 3 and 4 together
  double size = 0, size_squared = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const auto drawn = sampler.draw({step});
    for (const int64_t unit : drawn) ++times[static_cast<size_t>(unit)];
    const std::set<int64_t> set(drawn.begin(), drawn.end());
    EXPECT_EQ(set.size(), drawn.size());
    pairs += set.contains(3) && set.contains(4) ? 1 : 0;
    size += static_cast<double>(drawn.size());
    size_squared += static_cast<double>(drawn.size() * drawn.size());
  }
  const double q = static_cast<double>(batch) / static_cast<double>(n);
  const double variance = q * (1 - q);
  // Binomial: total count within 5 sd; every unit within 5 sd of its own count (n·1e-6 chance of a false alarm).
  EXPECT_NEAR(size / (n * steps), q, 5 * std::sqrt(variance / (n * steps)));
  for (const double count : times) EXPECT_NEAR(count / steps, q, 5 * std::sqrt(variance / steps));
  EXPECT_NEAR(pairs / steps, q * q, 5 * std::sqrt(q * q * (1 - q * q) / steps));
  // Batch sizes vary as a binomial does (a fixed-size sampler would have variance 0): relative sd sqrt(2/steps).
  const double mean = size / steps;
  const double spread = size_squared / steps - mean * mean;
  EXPECT_NEAR(spread / (n * variance), 1.0, 5 * std::sqrt(2.0 / steps));
}

TEST(PoissonSampler, DependsOnKeyStepAndAttempt) {
  const auto key = key_of(1);
  const auto other_key = key_of(2);
  const auto plan = plan_of(500, 250);
  const auto sampler = plan.sampler(key, 0, 1);
  const auto base = sampler.draw({4});
  EXPECT_EQ(base, sampler.draw({4}));
  EXPECT_NE(base, sampler.draw({5}));
  EXPECT_NE(base, sampler.draw({4, 1}));
  EXPECT_NE(base, plan.sampler(other_key, 0, 1).draw({4}));
}

// The coins are drawn by thousands of units at a time. No two stretches may have the same ones.
TEST(PoissonSampler, TossesEveryUnitsOwnCoin) {
  const int64_t n = 3 * 4096 + 100;
  const auto key = key_of(3);
  const auto drawn = plan_of(n, n / 2).sampler(key, 0, 1).draw({0});
  std::vector<bool> in(static_cast<size_t>(n));
  for (const int64_t unit : drawn) in[static_cast<size_t>(unit)] = true;
  for (const int64_t distance : {1, 2, 64, 512, 1024, 2048, 4096, 8192}) {
    int64_t equal = 0;
    for (int64_t u = 0; u + distance < n; ++u) {
      equal += in[static_cast<size_t>(u)] == in[static_cast<size_t>(u + distance)] ? 1 : 0;
    }
    // Independent fair coins agree half of the time: within 5 standard deviations.
    const double pairs = static_cast<double>(n - distance);
    EXPECT_NEAR(static_cast<double>(equal) / pairs, 0.5, 5 * std::sqrt(0.25 / pairs)) << distance << " units apart";
  }
}

// floor(B·2^64/n) coins out of 2^64 are heads: never more than the accounted rate says.
TEST(PoissonSampler, TakesNoUnitMoreOftenThanIsAccounted) {
  __extension__ using Wide = unsigned __int128;
  for (const int64_t units : {3, 7, 10, 49, 107, 1000, 15261, 60000, 1234567, 2147483647}) {
    for (const int64_t batch : {int64_t{1}, int64_t{3}, units / 3, units - 1, units}) {
      const auto plan = plan_of(units, batch);
      // A double of at least 2^-31 times 2^96 is a whole number.
      const auto accounted = static_cast<Wide>(std::ldexp(plan.sampling_rate().value(), 96));
      EXPECT_GE(accounted, (static_cast<Wide>(batch) << 96) / static_cast<Wide>(units)) << batch << " of " << units;
    }
  }
}

TEST(PoissonSampler, TakesEverythingAtQOne) {
  const auto key = key_of(1);
  EXPECT_EQ(plan_of(77, 77).sampler(key, 0, 1).draw({0}).size(), 77U);
}

// One 64-bit word from each of two streams of the coins' key, all of them computed.
std::vector<int64_t> slow_draw(const dp::RunKey& key, const dp::StepId& step, int64_t units, int64_t batch) {
  __extension__ using Wide = unsigned __int128;
  const auto coins_key = key.derive(dp::Purpose::kCoins, step);
  std::vector<uint64_t> leads(static_cast<size_t>(units / 4 + 1)), rests(static_cast<size_t>(units));
  kernels::uniform_words(coins_key, 0, 0, leads);
  kernels::uniform_words(coins_key, 1, 0, rests);
  std::vector<int64_t> heads;
  for (int64_t unit = 0; unit < units; ++unit) {
    const uint64_t lead = leads[static_cast<size_t>(unit / 4)] >> (16 * (unit % 4)) & 0xffff;
    const uint64_t coin = lead << 48 | rests[static_cast<size_t>(unit)] >> 16;
    if (static_cast<Wide>(coin) < (static_cast<Wide>(batch) << 64) / static_cast<Wide>(units)) heads.push_back(unit);
  }
  return heads;
}

// Rates whose leading bits decide seldom, mostly, and never: below 2^-16 only units whose 16 bits are all 0 are drawn.
TEST(PoissonSampler, TossesTheCoinsOfItsSlowTwin) {
  const auto key = key_of(5);
  const int64_t units = 300'007;
  int64_t undecided = 0;
  for (const int64_t batch : {int64_t{1}, int64_t{4}, int64_t{1000}, units / 3, units - 1}) {
    for (int64_t step = 0; step < 8; ++step) {
      const auto expected = slow_draw(key, {step}, units, batch);
      EXPECT_EQ(plan_of(units, batch).sampler(key, 0, 1).draw({step}), expected) << batch << " in step " << step;
      undecided += batch <= 4 ? static_cast<int64_t>(expected.size()) : 0;
    }
  }
  EXPECT_GT(undecided, 0) << "no coin hung on its last 48 bits";
}

TEST(PoissonSampler, DrawsTheSameInParts) {
  const auto key = key_of(6);
  const int64_t units = 100'003;
  const auto sampler = plan_of(units, 20'000).sampler(key, 0, 1);
  const auto whole = sampler.draw({2});
  for (const int64_t cut :
       {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{32767}, int64_t{32768}, int64_t{50'001}, units}) {
    auto batch = sampler.draw_part({2}, 0, cut);
    const auto rest = sampler.draw_part({2}, cut, units);
    batch.insert(batch.end(), rest.begin(), rest.end());
    EXPECT_EQ(batch, whole) << "cut at " << cut;
  }
}

TEST(PoissonSampler, DrawsTheSameOnAnyNumberOfRanks) {
  const auto key = key_of(7);
  for (const auto& [units, batch] : {std::pair<int64_t, int64_t>{5, 2}, {1000, 1}, {100'003, 777}}) {
    const auto plan = plan_of(units, batch);
    for (const int ranks : {1, 2, 3, 8}) {
      std::atomic<int> alike{0};
      run_ranks(ranks, [&](fsdp::Mesh& mesh) {
        const auto sampler = plan.sampler(key, mesh.rank(), ranks);
        alike += sampler.draw_together({3}, mesh, /*few=*/0) == sampler.draw({3}) ? 1 : 0;
      });
      EXPECT_EQ(alike, ranks) << units << " units";
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Groups: cyclic Poisson sampling

dp::DpPlan plan_of_groups(int64_t units, int64_t batch, int64_t groups) {
  return dp::DpPlan::make({.units = units,
                           .expected_batch = batch,
                           .steps = 10,
                           .noise_bands = {.ratios = std::vector<float>(static_cast<size_t>(groups - 1), 0.5F)},
                           .noise_multiplier = accountant::NoiseMultiplier(1.0)});
}

// The coins of the step's group, one for each of its units, at the rate of the whole batch within it.
TEST(CyclicSampler, TossesTheCoinsOfItsSlowTwin) {
  const auto key = key_of(5);
  for (const auto& [units, batch, groups] :
       {std::tuple<int64_t, int64_t, int64_t>{1000, 37, 4}, {1003, 100, 7}, {12, 3, 4}, {90'001, 11, 2}}) {
    const auto sampler = plan_of_groups(units, batch, groups).sampler(key, 0, 1);
    for (int64_t step = 0; step < 9; ++step) {
      std::vector<int64_t> expected;
      for (const int64_t coin : slow_draw(key, {step, 1}, units, batch * groups)) {
        const int64_t unit = coin * groups + step % groups;
        if (unit < units) expected.push_back(unit);
      }
      EXPECT_EQ(sampler.draw({step, 1}), expected) << units << " units, step " << step;
    }
  }
}

TEST(CyclicSampler, DrawsEachUnitInItsGroupsStepsAloneAndAsOftenAsAccounted) {
  const int64_t units = 400, batch = 20, groups = 4, steps = 1200;
  const auto key = key_of(9);
  const auto plan = plan_of_groups(units, batch, groups);
  const auto sampler = plan.sampler(key, 0, 1);
  std::vector<double> times(static_cast<size_t>(units), 0.0);
  double total = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (const int64_t unit : sampler.draw({step})) {
      EXPECT_EQ(unit % groups, step % groups);
      ++times[static_cast<size_t>(unit)];
      ++total;
    }
  }
  const double q = plan.sampling_rate().value(), rounds = static_cast<double>(steps / groups);
  EXPECT_EQ(q, 0.2);
  for (const double count : times) EXPECT_NEAR(count / rounds, q, 5 * std::sqrt(q * (1 - q) / rounds));
  // The batch is B on average: binomial, five standard deviations.
  EXPECT_NEAR(total / steps, batch, 5 * std::sqrt(batch * (1 - q) / steps));
}

TEST(CyclicSampler, DrawsTheSameInPartsAndOnAnyNumberOfRanks) {
  const auto key = key_of(6);
  const int64_t units = 10'007;
  const auto plan = plan_of_groups(units, 900, 8);
  const auto sampler = plan.sampler(key, 0, 1);
  for (int64_t step = 0; step < 8; ++step) {
    const auto whole = sampler.draw({step});
    EXPECT_FALSE(whole.empty());
    for (const int64_t cut : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, int64_t{5003}, units}) {
      auto batch = sampler.draw_part({step}, 0, cut);
      const auto rest = sampler.draw_part({step}, cut, units);
      batch.insert(batch.end(), rest.begin(), rest.end());
      EXPECT_EQ(batch, whole) << "cut at " << cut << " in step " << step;
    }
  }
  std::atomic<int> alike{0};
  run_ranks(3, [&](fsdp::Mesh& mesh) {
    const auto mine = plan.sampler(key, mesh.rank(), 3);
    alike += mine.draw_together({5}, mesh, /*few=*/0) == mine.draw({5}) ? 1 : 0;
  });
  EXPECT_EQ(alike, 3);
}

struct Deal {
  const char* name;
  int64_t units;
  int64_t ranks;
  int64_t microbatch;
};
void PrintTo(const Deal& c, std::ostream* out) { *out << c.name; }
const Deal kDeals[] = {
    {"nothing_sampled", 0, 2, 4}, {"fewer_units_than_ranks", 1, 4, 4}, {"uneven", 17, 2, 4},
    {"one_rank", 17, 1, 16},      {"many_ranks", 100, 8, 3},           {"microbatch_larger_than_batch", 5, 2, 100},
};
class Dealing : public ::testing::TestWithParam<Deal> {};

TEST_P(Dealing, GivesEveryUnitOnceAndEveryRankTheSameNumberOfMicrobatches) {
  const Deal& c = GetParam();
  std::vector<int64_t> batch(static_cast<size_t>(c.units));
  std::iota(batch.begin(), batch.end(), 0);
  std::vector<int64_t> lengths;
  for (int64_t u = 0; u < c.units; ++u) lengths.push_back((u * 37) % 23);
  std::multiset<int64_t> seen;
  std::set<size_t> counts;
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    const auto mine = dp::deal(batch, c.microbatch, lengths, rank, c.ranks);
    counts.insert(mine.size());
    for (const auto& units : mine) {
      EXPECT_LE(static_cast<int64_t>(units.size()), c.microbatch);
      seen.insert(units.begin(), units.end());
    }
  }
  EXPECT_EQ(counts.size(), 1U);
  EXPECT_EQ(seen, std::multiset<int64_t>(batch.begin(), batch.end()));
}

INSTANTIATE_TEST_SUITE_P(Sampler, Dealing, ::testing::ValuesIn(kDeals),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Dealing, RefusesAnEmptyMicrobatch) { EXPECT_THROW(dp::deal({1, 2}, 0, {}, 0, 1), std::invalid_argument); }

}  // namespace
}  // namespace ghostshard::tests
