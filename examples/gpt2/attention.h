// Causal attention within each text of a microbatch, whatever their lengths, without padding.
//
// Texts of equal length share one call of scaled_dot_product_attention. Nothing is padded, for two reasons. Padding
// would be computed for nothing. And the kernel blocks its sums by the padded length, so the rounding of a text would
// depend on the lengths of its neighbours: measured up to 3e-3 of a gradient in bfloat16, 1e-7 in float32, which the
// clip norm of the neighbour does not bound. Without padding a text gives the same bits whatever its neighbours are.
// Texts never see each other, even if they are one user's.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/segments.h"

namespace ghostshard::gpt2 {

// The order of the rows, worked out once per microbatch and used by every block, forward and backward.
class AttentionPlan {
 public:
  // `texts` texts of `length` rows each: one call.
  struct Group {
    int64_t texts = 0;
    int64_t length = 0;
  };

  // documents: the rows of each text, empty ones allowed. device: that of the rows to attend.
  explicit AttentionPlan(const kernels::Segments& documents, at::Device device = at::kCPU);

  // [N, d] from qkv [N, 3d], whose last extent is (q, k, v) × heads × head size; differentiable.
  at::Tensor attend(const at::Tensor& qkv, int64_t heads) const;

  const std::vector<Group>& groups() const { return groups_; }  // longest first

 private:
  int64_t rows_;
  std::vector<Group> groups_;
  // Undefined if rows are in their places already, as in a microbatch of one length.
  at::Tensor gather_;  // int64 [N]: the row at each place
  at::Tensor place_;   // int64 [N]: the place of each row
};

}  // namespace ghostshard::gpt2
