// Truncated Poisson sampling: which units stay of a draw that is too large, and how the batch is dealt out.
#include "dp/mechanism/truncation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>

#include "dp/mechanism/coins.h"
#include "dp/mechanism/plan.h"
#include "kernels/gaussian.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"

namespace ghostshard::tests {
namespace {

using Units = std::vector<int64_t>;

dp::DpPlan plan_of(int64_t units, int64_t batch, int64_t cap) {
  return dp::DpPlan::make({.units = units,
                           .expected_batch = batch,
                           .steps = 10,
                           .maximum_batch = cap,
                           .noise_multiplier = accountant::NoiseMultiplier(1.0)});
}

// The textbook's: from 128-bit arithmetic, over words that were all computed before.
Units slow_truncated(Units drawn, int64_t cap, const dp::RunKey& key, const dp::StepId& step) {
  __extension__ using Wide = unsigned __int128;
  std::vector<uint64_t> words(3 * drawn.size() + 64);
  kernels::uniform_words(key.derive(dp::Purpose::kTruncation, step), 0, 0, words);
  auto word = words.begin();
  size_t gone = 0;
  for (; static_cast<int64_t>(drawn.size() - gone) > cap; ++gone) {
    const Wide count = drawn.size() - gone;
    const Wide unfair = (static_cast<Wide>(1) << 64) % count;
    while (*word < unfair) ++word;
    std::swap(drawn[gone], drawn[gone + static_cast<size_t>(*word++ % count)]);
  }
  Units rest(drawn.begin() + static_cast<std::ptrdiff_t>(gone), drawn.end());
  std::sort(rest.begin(), rest.end());
  return rest;
}

// A chi-square variable of k degrees of freedom exceeds this with probability at most e^-14 < 1e-6 (Laurent and Massart
// 2000, Annals of Statistics 28(5), Lemma 1).
double rarely_exceeded(double k) { return k + 2 * std::sqrt(14 * k) + 2 * 14; }

// Of the batches counted, against their probabilities; every cell is expected 100 times or more.
void expect_distribution(const std::map<Units, int64_t>& seen, const std::map<Units, double>& expected, int64_t draws) {
  double chi_square = 0;
  for (const auto& [batch, probability] : expected) {
    const double mean = probability * static_cast<double>(draws);
    ASSERT_GE(mean, 100);
    const auto found = seen.find(batch);
    const double excess = (found == seen.end() ? 0 : static_cast<double>(found->second)) - mean;
    chi_square += excess * excess / mean;
  }
  EXPECT_LE(chi_square, rarely_exceeded(static_cast<double>(expected.size() - 1)));
  for (const auto& [batch, count] : seen) EXPECT_TRUE(expected.contains(batch)) << testing::PrintToString(batch);
}

TEST(Truncation, IsItsSlowTwin) {
  const auto key = key_of(3);
  for (const auto& [all, cap] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {5, 9}, {5, 5}, {6, 5}, {7, 1}, {100, 50}, {1000, 999}, {3000, 7}}) {
    Units drawn(static_cast<size_t>(all));
    for (int64_t i = 0; i < all; ++i) drawn[static_cast<size_t>(i)] = i * i + 3;
    for (const dp::StepId step : {dp::StepId{0, 0}, dp::StepId{4, 0}, dp::StepId{4, 1}}) {
      const auto kept = dp::truncated(drawn, cap, key, step);
      EXPECT_EQ(kept, slow_truncated(drawn, cap, key, step)) << cap << " of " << all;
      EXPECT_EQ(static_cast<int64_t>(kept.size()), std::min(all, cap));
    }
  }
}

TEST(Truncation, IsAnotherInEveryStepAttemptAndRun) {
  const auto key = key_of(3), other_key = key_of(4);
  Units all(1000);
  std::iota(all.begin(), all.end(), 0);
  const auto base = dp::truncated(all, 500, key, {4});
  EXPECT_EQ(base, dp::truncated(all, 500, key, {4}));
  EXPECT_NE(base, dp::truncated(all, 500, key, {5}));
  EXPECT_NE(base, dp::truncated(all, 500, key, {4, 1}));
  EXPECT_NE(base, dp::truncated(all, 500, other_key, {4}));
}

TEST(Truncation, KeepsEverySubsetEquallyOften) {
  const auto key = key_of(8);
  const Units drawn{1, 4, 5, 11, 12, 40};
  constexpr int64_t kDraws = 20'000;
  for (const int64_t cap : {1, 3, 5}) {
    std::map<Units, int64_t> seen;
    for (int64_t step = 0; step < kDraws; ++step) ++seen[dp::truncated(drawn, cap, key, {step})];
    std::map<Units, double> expected;
    for (unsigned kept = 0; kept < 64; ++kept) {
      if (__builtin_popcount(kept) != cap) continue;
      Units batch;
      for (size_t i = 0; i < drawn.size(); ++i)
        if ((kept >> i & 1) != 0) batch.push_back(drawn[i]);
      expected[batch] = 1;
    }
    for (auto& [batch, probability] : expected) probability = 1.0 / static_cast<double>(expected.size());
    expect_distribution(seen, expected, kDraws);
  }
}

TEST(Truncation, RefusesACapOfNone) {
  const auto key = key_of(1);
  EXPECT_THROW(dp::truncated({1, 2}, 0, key, {0}), std::invalid_argument);
}

TEST(Truncation, HasTheCoinsOwnRate) {
  for (const double q : {1.0, 0.5, 1.0 / 3, 1e-3, 1e-5 / 3, 1e-9 / 7, 0x1p-64}) {
    const double exact = dp::coin_rate(accountant::SamplingRate(q)).value();
    EXPECT_LE(exact, q);
    EXPECT_LT(q - exact, 0x1p-64);
    const auto bound = dp::CoinBound::of_rate(accountant::SamplingRate(exact));
    if (q == 1) {
      EXPECT_TRUE(bound.everything());
    } else {
      EXPECT_EQ(std::ldexp(static_cast<long double>(bound.threshold()), -64), static_cast<long double>(exact)) << q;
    }
  }
  EXPECT_THROW(dp::coin_rate(accountant::SamplingRate(0x1p-65)), std::invalid_argument);
}

// ---------------------------------------------------------------------------------------------------------------------
// The sampler

// Every batch of a small data set, by the mechanism's definition: each unit is drawn with probability q, and of a draw
// that is too large each subset of `cap` stays equally often.
TEST(TruncatedSampler, DrawsEveryBatchAsOftenAsAccounted) {
  constexpr int kUnits = 6, kCap = 3;
  constexpr int64_t kDraws = 30'000;
  const auto key = key_of(5);
  const auto plan = plan_of(kUnits, 3, kCap);
  const double q = plan.sampling_rate().value();
  std::map<Units, double> expected;
  for (unsigned drawn = 0; drawn < 1U << kUnits; ++drawn) {
    const int size = __builtin_popcount(drawn);
    const double probability = std::pow(q, size) * std::pow(1 - q, kUnits - size);
    std::set<Units> kept;
    for (unsigned part = 0; part < 1U << kUnits; ++part) {
      if ((part & ~drawn) != 0 || __builtin_popcount(part) != std::min(size, kCap)) continue;
      Units batch;
      for (int unit = 0; unit < kUnits; ++unit)
        if ((part >> unit & 1) != 0) batch.push_back(unit);
      kept.insert(batch);
    }
    for (const Units& batch : kept) expected[batch] += probability / static_cast<double>(kept.size());
  }
  const auto sampler = plan.sampler(key, 0, 1);
  std::map<Units, int64_t> seen;
  for (int64_t step = 0; step < kDraws; ++step) ++seen[sampler.draw({step})];
  expect_distribution(seen, expected, kDraws);
}

TEST(TruncatedSampler, CutsThePoissonDrawOfTheSameCoins) {
  const auto key = key_of(6);
  const int64_t units = 50'000, batch = 500, cap = 505;
  const auto plan = plan_of(units, batch, cap);
  const auto sampler = plan.sampler(key, 0, 1);
  int64_t cut = 0;
  for (int64_t step = 0; step < 12; ++step) {
    const auto all = dp::drawn_units(key, {step}, 0, units, dp::CoinBound::of_rate(plan.sampling_rate()));
    cut += static_cast<int64_t>(all.size()) > cap ? 1 : 0;
    EXPECT_EQ(sampler.draw({step}), slow_truncated(all, cap, key, {step}));
    EXPECT_EQ(sampler.draw_part({step}, 0, units), all);
  }
  EXPECT_GT(cut, 0) << "nothing was cut";
  EXPECT_LT(cut, 12) << "every draw was cut";
}

TEST(TruncatedSampler, DrawsTheSameOnAnyNumberOfRanks) {
  const auto key = key_of(7);
  const auto plan = plan_of(20'011, 400, 402);
  for (const int ranks : {1, 2, 3, 5}) {
    std::atomic<int> alike{0};
    run_ranks(ranks, [&](fsdp::Mesh& mesh) {
      const auto sampler = plan.sampler(key, mesh.rank(), ranks);
      for (int64_t step = 0; step < 6; ++step) {
        alike += sampler.draw_together({step}, mesh, /*few=*/0) == sampler.draw({step}) ? 1 : 0;
      }
    });
    EXPECT_EQ(alike, 6 * ranks);
  }
}

TEST(TruncatedSampler, HasAsManyMicrobatchesInEveryStep) {
  const auto key = key_of(7);
  const auto plan = plan_of(100, 10, 14);
  for (const int64_t ranks : {1, 3}) {
    // 14 units on one rank, or at most 5 on each of three, four at a time.
    const size_t count = ranks == 1 ? 4 : 2;
    std::set<size_t> sizes;
    for (int64_t step = 0; step < 40; ++step) {
      std::multiset<int64_t> seen;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto mine = plan.sampler(key, rank, ranks).draw_local({step}, 4, {});
        EXPECT_EQ(mine.size(), count);
        for (const auto& units : mine) {
          EXPECT_LE(units.size(), 4U);
          seen.insert(units.begin(), units.end());
        }
      }
      const auto whole = plan.sampler(key, 0, 1).draw({step});
      EXPECT_EQ(seen, std::multiset<int64_t>(whole.begin(), whole.end()));
      sizes.insert(whole.size());
    }
    EXPECT_GT(sizes.size(), 3U) << "draws were all alike";
    EXPECT_EQ(*sizes.rbegin(), 14U);
  }
}

}  // namespace
}  // namespace ghostshard::tests
