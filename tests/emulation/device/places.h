// Which parts of a range of addresses are free. A place is [first, first + size) within [0, capacity); the lowest free
// one is taken first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace ghostshard::tests {

// Not synchronised.
class Places {
 public:
  explicit Places(int64_t capacity) : free_{{0, capacity}} {}

  // The first address of the lowest free place of `size` > 0; -1 if there is none.
  int64_t take(int64_t size) {
    const auto found =
        std::find_if(free_.begin(), free_.end(), [&](const auto& place) { return place.second >= size; });
    if (found == free_.end()) return -1;
    const auto [first, available] = *found;
    free_.erase(found);
    if (available > size) free_.emplace(first + size, available - size);
    return first;
  }

  // Gives a place back, with the size it was taken with, and joins it with its neighbours.
  void give_back(int64_t first, int64_t size) {
    auto next = free_.lower_bound(first);
    if (next != free_.end() && next->first == first + size) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == first) {
        before->second += size;
        return;
      }
    }
    free_.emplace(first, size);
  }

  const std::map<int64_t, int64_t>& free() const { return free_; }  // first -> size; no two touch

 private:
  std::map<int64_t, int64_t> free_;
};

}  // namespace ghostshard::tests
