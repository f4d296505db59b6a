// Which rows of a batch belong to which unit.
//
// Every operation of this folder sees a batch as rows [N, .] and a list of offsets: rows offsets[u] up to
// offsets[u+1] (exclusive) are unit u's. A padded batch [B,T,.], packed sequences and several documents of one
// owner are all cases of it, and no padding is ever computed on.
#pragma once

#include <cstdint>
#include <vector>

namespace ghostshard::kernels {

class Segments {
 public:
  // offsets [U+1]: starts at 0, never decreases. U = 0 (an empty batch) and empty units are allowed. Otherwise throws
  // std::invalid_argument naming the first offending position.
  explicit Segments(std::vector<int64_t> offsets);
  // `units` units of `rows_each` rows each. Throws std::invalid_argument if either is negative.
  static Segments even(int64_t units, int64_t rows_each = 1);

  int64_t units() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t rows() const { return offsets_.back(); }
  int64_t begin(int64_t unit) const { return offsets_[static_cast<size_t>(unit)]; }
  int64_t end(int64_t unit) const { return offsets_[static_cast<size_t>(unit) + 1]; }
  int64_t length(int64_t unit) const { return end(unit) - begin(unit); }
  int64_t longest() const { return longest_; }
  // Sum over units of length², which the cost of a Gram norm is proportional to.
  int64_t sum_of_squared_lengths() const { return squared_; }
  const std::vector<int64_t>& offsets() const { return offsets_; }

 private:
  std::vector<int64_t> offsets_;
  int64_t longest_ = 0;
  int64_t squared_ = 0;
};

}  // namespace ghostshard::kernels
