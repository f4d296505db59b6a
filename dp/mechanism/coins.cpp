#include "dp/mechanism/coins.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/gaussian.h"

namespace ghostshard::dp {
namespace {

__extension__ using Wide = unsigned __int128;

}  // namespace

CoinBound CoinBound::of_batch(int64_t batch, int64_t units) {
  if (batch == units) return {true, 0};
  return {false, static_cast<uint64_t>((static_cast<Wide>(batch) << 64) / static_cast<Wide>(units))};
}

CoinBound CoinBound::of_rate(accountant::SamplingRate rate) {
  if (rate.value() == 1) return {true, 0};
  // Below 2^64 for every double below 1; scaling by a power of two is exact, and the conversion rounds down.
  return {false, static_cast<uint64_t>(std::ldexp(rate.value(), 64))};
}

std::vector<int64_t> drawn_units(const RunKey& key, const StepId& step, int64_t units, const CoinBound& bound) {
  std::vector<int64_t> drawn;
  const kernels::ChaChaKey coins_key = key.derive(Purpose::kCoins, step);
  constexpr int64_t kChunk = 4096;
  std::vector<uint64_t> coins(kChunk);
  for (int64_t first = 0; first < units; first += kChunk) {
    const int64_t count = std::min(kChunk, units - first);
    kernels::uniform_words(coins_key, /*stream=*/0, static_cast<uint64_t>(first),
                           std::span<uint64_t>(coins.data(), static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) {
      if (bound.falls(coins[static_cast<size_t>(i)])) drawn.push_back(first + i);
    }
  }
  return drawn;
}

}  // namespace ghostshard::dp
