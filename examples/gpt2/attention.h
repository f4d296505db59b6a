// Causal attention within each text of a microbatch, whatever their lengths, without padding all to the longest.
//
// Texts are sorted by length and cut into buckets; one call of scaled_dot_product_attention serves a bucket, padded to
// its longest. Where to cut is a trade: a call costs time of its own, padded rows cost arithmetic. What pads a text is
// its own last row: with causal attention no real row looks at it, and whatever it holds, not-a-number included, stays
// within the text it belongs to. Texts never see each other, also where they are one user's.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/segments.h"

namespace ghostshard::gpt2 {

// `texts` neighbours in descending order of length, all padded to `longest`.
struct LengthBucket {
  int64_t texts = 0;
  int64_t longest = 0;

  friend bool operator==(const LengthBucket&, const LengthBucket&) = default;
};

// The cheapest cut of these lengths (descending, all ≥ 1) for rows of `width` values, by dynamic programming over the
// distinct lengths. Pure; std::invalid_argument if they ascend somewhere.
std::vector<LengthBucket> length_buckets(std::span<const int64_t> descending_lengths, int64_t width);

// Which row stands where, worked out once per microbatch and used by every block, forward and backward.
class AttentionPlan {
 public:
  // documents: the rows of each text, empty ones allowed. width: d.
  AttentionPlan(const kernels::Segments& documents, int64_t width);

  // [N, d] from qkv [N, 3d], whose last extent is (q, k, v) × heads × head size; differentiable.
  at::Tensor attend(const at::Tensor& qkv, int64_t heads) const;

  const std::vector<LengthBucket>& buckets() const { return buckets_; }
  int64_t padded_rows() const;  // over all buckets, real ones included

 private:
  int64_t rows_;
  std::vector<LengthBucket> buckets_;
  at::Tensor gather_;  // int64 [padded_rows]: the row at each place; undefined where rows are in their places already
  at::Tensor place_;   // int64 [N]: the place of each row
};

}  // namespace ghostshard::gpt2
