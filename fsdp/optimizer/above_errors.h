// The directions of a matrix that stand out of known errors, all of one length (fsdp/optimizer.h, MuonErrors).
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::fsdp {

// matrices [n, p, d] whose elements are off by independent errors of this variance, > 0. Of each U·Vᵀ over the singular
// values above √variance·(√p + √d + 2); corrected: each direction times 1 + variance·b_i, at most 2.
at::Tensor orthogonalised_above(const at::Tensor& matrices, double variance, bool corrected);

}  // namespace ghostshard::fsdp
