// A uniform 64-bit word as one of `count` values, each with exactly the same probability.
#pragma once

#include <cstdint>
#include <optional>

namespace ghostshard::dp {

class UniformBelow {
 public:
  explicit UniformBelow(uint64_t count) : count_(count), passed_over_((~count + 1) % count) {}  // 2^64 mod count

  // 0 ≤ value < count. Nothing for the first 2^64 mod count words, which would favour some values: another word
  // decides.
  std::optional<uint64_t> operator()(uint64_t word) const {
    if (word < passed_over_) return std::nullopt;
    return word % count_;
  }

 private:
  uint64_t count_, passed_over_;
};

}  // namespace ghostshard::dp
