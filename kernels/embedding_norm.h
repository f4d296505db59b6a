// Per-unit gradients of a table lookup: G_u[v] = sum of e_s over the rows s of unit u with ids[s] = v.
//
// ids int64 [N] in [0,V), e [N,d] float32 (float64 in tests), segments over the N rows. Rows are sorted by id and
// summed in segments: never one-hot, never T². Throws std::invalid_argument (rule and value) if shapes do not fit or,
// on the CPU, if an id is out of range. On a device the host would have to wait to see such an id: there its unit gets
// an infinite norm, so only the factor 0 is right for that unit, and its row is added to nothing.
#pragma once

#include <ATen/ATen.h>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Adds ‖G_u‖² to parts.value, its error bound to value_error, and the sum of |e_s| to mass. Raises sum_error to that of
// embedding_scaled_sum.
void embedding_norm(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, int64_t table_rows,
                    NormParts& parts);

// out[v] += the sum of c_u·e_s over the rows s of unit u with ids[s] = v, unit after unit (deterministic); out float32
// [V,d]. Only a unit's own sum meets the others': its rows may cancel (kernels/scaled_sum.h). A unit whose factor is
// exactly 0 is not read, so 0·inf cannot happen.
void embedding_scaled_sum(const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                          const at::Tensor& factors, at::Tensor out);

// Adds G_u to held per-unit gradients [U,V,d] (those of a tied pair's head). Sets parts.value and value_error to those
// of the values now in held.
void embedding_into_held(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, at::Tensor held,
                         NormParts& parts);

}  // namespace ghostshard::kernels
