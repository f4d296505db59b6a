#include "kernels/segments.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace ghostshard::kernels {

Segments::Segments(std::vector<int64_t> offsets) : offsets_(std::move(offsets)) {
  if (offsets_.empty()) {
    throw std::invalid_argument("Segments: offsets must hold at least one entry, the 0 they start at; got none");
  }
  if (offsets_.front() != 0) {
    throw std::invalid_argument("Segments: offsets must start at 0; got offsets[0] = " +
                                std::to_string(offsets_.front()));
  }
  for (size_t i = 1; i < offsets_.size(); ++i) {
    if (!(offsets_[i] >= offsets_[i - 1])) {
      throw std::invalid_argument("Segments: offsets must not decrease; got offsets[" + std::to_string(i) +
                                  "] = " + std::to_string(offsets_[i]) + " after " + std::to_string(offsets_[i - 1]));
    }
    const int64_t length = offsets_[i] - offsets_[i - 1];
    longest_ = std::max(longest_, length);
    squared_ += length * length;
  }
}

Segments Segments::even(int64_t units, int64_t rows_each) {
  if (!(units >= 0 && rows_each >= 0)) {
    throw std::invalid_argument("Segments: units and rows must be >= 0; got " + std::to_string(units) + " units of " +
                                std::to_string(rows_each) + " rows");
  }
  std::vector<int64_t> offsets(static_cast<size_t>(units) + 1);
  for (size_t u = 0; u < offsets.size(); ++u) offsets[u] = static_cast<int64_t>(u) * rows_each;
  return Segments(std::move(offsets));
}

}  // namespace ghostshard::kernels
