// Per-unit gradients of a table lookup: G_u[v] = sum of e_s over the rows s of unit u with ids[s] = v.
//
// ids int64 [N] in [0,V), e [N,d] float32 (float64 in tests), segments over the N rows. Sorted segment sums: never
// one-hot, never T². Throws std::invalid_argument (rule and value) on shapes that do not fit or an id out of range. On
// a device the host would have to wait to see one: there the unit that has it gets an infinite norm, so that no factor
// but 0 is right for it, and the row is added to nothing.
#pragma once

#include <ATen/ATen.h>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Adds ‖G_u‖² to parts.value with its error bound; mass is the sum of |e_s|, sum_error that of embedding_scaled_sum.
void embedding_norm(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, int64_t table_rows,
                    NormParts& parts);

// out[ids[s]] += c_u·e_s for every row s of every unit u, in row order (deterministic); out float32 [V,d].
// A unit with factor exactly 0 is not read, so that 0·inf cannot happen.
void embedding_scaled_sum(const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                          const at::Tensor& factors, at::Tensor out);

// Adds G_u into held per-unit gradients [U,V,d] (the head of a tied pair that is held) and sets parts.value anew.
void embedding_into_held(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, at::Tensor held,
                         NormParts& parts);

}  // namespace ghostshard::kernels
