#include "fsdp/granule.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace ghostshard::fsdp {
namespace {

int64_t at_least_one(int64_t count, const char* of) {
  if (!(count >= 1)) {
    throw std::invalid_argument("a granule must have at least one of its " + std::string(of) + ", got " +
                                std::to_string(count));
  }
  return count;
}

// a·b, or more than any tensor has.
int64_t product(int64_t a, int64_t b) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  return b > 0 && a > kMost / b ? kMost : a * b;
}

}  // namespace

Granule Granule::elements(int64_t count) { return {Kind::kElements, at_least_one(count, "elements")}; }
Granule Granule::rows(int64_t count) { return {Kind::kRows, at_least_one(count, "rows")}; }
Granule Granule::tiles(int64_t side) { return {Kind::kTiles, at_least_one(side, "tiles' rows")}; }
Granule Granule::heads(int64_t count) { return {Kind::kHeads, at_least_one(count, "heads")}; }
Granule Granule::whole() { return {Kind::kWhole, 1}; }

int64_t Granule::of(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto rule = [&](const std::string& text) { throw std::invalid_argument("parameter '" + name + "': " + text); };
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  const int64_t row = shape.empty() ? 1 : shape.back();
  int64_t elements = count_;
  if (kind_ == Kind::kRows) elements = product(count_, row);
  if (kind_ == Kind::kTiles) {
    if (shape.size() < 2) rule("a granule of tiles needs two extents or more, got " + std::to_string(shape.size()));
    elements = product(count_, row);
  }
  if (kind_ == Kind::kHeads) {
    const int64_t first = shape.empty() ? 1 : shape.front();
    if (first % count_ != 0) {
      rule("the heads of its granule must divide its first extent of " + std::to_string(first) + ", got " +
           std::to_string(count_));
    }
    elements = numel / count_;
  }
  if (kind_ == Kind::kWhole) elements = numel;
  return std::max<int64_t>(1, std::min(elements, numel));
}

}  // namespace ghostshard::fsdp
