#include "dp/mechanism/truncation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "dp/mechanism/uniform_below.h"
#include "kernels/gaussian.h"

namespace ghostshard::dp {
namespace {

// The uniform words of one subkey, one after another.
class Words {
 public:
  explicit Words(const kernels::ChaChaKey& key) : key_(key) {}

  // 0 ≤ value < count, each with the same probability.
  uint64_t below(uint64_t count) {
    const UniformBelow of_word(count);
    for (;;) {
      if (const auto value = of_word(next())) return *value;
    }
  }

 private:
  uint64_t next() {
    if (used_ == words_.size()) {
      kernels::uniform_words(key_, 0, first_, words_);
      first_ += words_.size();
      used_ = 0;
    }
    return words_[used_++];
  }

  kernels::ChaChaKey key_;
  std::array<uint64_t, 64> words_{};
  uint64_t first_ = 0;
  size_t used_ = words_.size();
};

}  // namespace

std::vector<int64_t> truncated(std::vector<int64_t> drawn, int64_t cap, const RunKey& key, const StepId& step) {
  if (!(cap >= 1)) throw std::invalid_argument("the largest batch must be >= 1, got " + std::to_string(cap));
  const size_t all = drawn.size();
  const auto most = static_cast<size_t>(cap);
  if (all <= most) return drawn;
  Words words(key.derive(Purpose::kTruncation, step));
  for (size_t gone = 0; gone < all - most; ++gone) std::swap(drawn[gone], drawn[gone + words.below(all - gone)]);
  drawn.erase(drawn.begin(), drawn.end() - static_cast<std::ptrdiff_t>(most));
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

accountant::SamplingRate coin_rate(accountant::SamplingRate q) {
  // Both scalings are by a power of two, hence exact, and the floor of a double is a double.
  const double exact = std::ldexp(std::floor(std::ldexp(q.value(), 64)), -64);
  if (!(exact > 0)) {
    throw std::invalid_argument("a sampling rate must be at least 2^-64, the least that coins have, got " +
                                std::to_string(q.value()));
  }
  return accountant::SamplingRate(exact);
}

}  // namespace ghostshard::dp
