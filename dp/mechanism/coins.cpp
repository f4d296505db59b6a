#include "dp/mechanism/coins.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/gaussian.h"

namespace ghostshard::dp {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int64_t kLeadsPerWord = 4;
constexpr int64_t kLeadsChunk = 32768;  // units: their leading bits, 64 KiB, stay in the cache
static_assert(std::endian::native == std::endian::little, "a word's first leading bits are its lowest");

// The coins of one step.
class Coins {
 public:
  Coins(const kernels::ChaChaKey& key, uint64_t threshold) : key_(key), threshold_(threshold) {}

  // Of the units first ≤ u < end of one chunk, those whose coins are below the threshold.
  void append_heads(int64_t first, int64_t end, std::vector<int64_t>& heads) {
    const int64_t from = first / kLeadsPerWord * kLeadsPerWord;
    const auto count = static_cast<size_t>((end - from + kLeadsPerWord - 1) / kLeadsPerWord);
    const std::span<uint64_t> words = std::span(words_).first(count);
    kernels::uniform_words(key_, kLeads, static_cast<uint64_t>(from / kLeadsPerWord), words);
    std::memcpy(leads_.data(), words.data(), words.size_bytes());
    constexpr int64_t kAtOnce = 64;  // mostly none of so many is a head: this loop has no branches
    const auto top = static_cast<uint16_t>(threshold_ >> 48);
    for (int64_t start = first; start < end; start += kAtOnce) {
      const int64_t stop = std::min(end, start + kAtOnce);
      bool any = false;
      for (int64_t u = start; u < stop; ++u) any |= leads_[static_cast<size_t>(u - from)] <= top;
      if (!any) continue;
      for (int64_t u = start; u < stop; ++u) {
        const uint16_t lead = leads_[static_cast<size_t>(u - from)];
        if (lead < top || (lead == top && rest_of(u) < threshold_ << 16 >> 16)) heads.push_back(u);
      }
    }
  }

 private:
  static constexpr uint32_t kLeads = 0, kRests = 1;  // streams of the key

  uint64_t rest_of(int64_t unit) const {
    uint64_t word = 0;
    kernels::uniform_words(key_, kRests, static_cast<uint64_t>(unit), std::span(&word, 1));
    return word >> 16;
  }

  kernels::ChaChaKey key_;
  uint64_t threshold_;
  std::vector<uint64_t> words_ = std::vector<uint64_t>(kLeadsChunk / kLeadsPerWord);  // of the chunk under way
  std::vector<uint16_t> leads_ = std::vector<uint16_t>(kLeadsChunk);
};

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

std::vector<int64_t> drawn_units(const RunKey& key, const StepId& step, int64_t first, int64_t end,
                                 const CoinBound& bound) {
  std::vector<int64_t> drawn;
  if (bound.everything()) {
    for (int64_t unit = first; unit < end; ++unit) drawn.push_back(unit);
    return drawn;
  }
  Coins coins(key.derive(Purpose::kCoins, step), bound.threshold());
  for (; first < end; first = (first / kLeadsChunk + 1) * kLeadsChunk) {
    coins.append_heads(first, std::min(end, (first / kLeadsChunk + 1) * kLeadsChunk), drawn);
  }
  return drawn;
}

}  // namespace ghostshard::dp
