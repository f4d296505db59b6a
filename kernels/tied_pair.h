// One matrix E [V,d] used twice, as embedding and as head: its gradient is the sum of both uses' gradients.
//
// Embedding: ids int64 [N] in [0,V), output gradients e [N,d], segments over the N rows. Head: inputs h [M,d], logit
// gradients b [M,V], segments over the M rows. The units of both segments are the same. Dtypes, devices and errors as
// in linear_norm.h; ids out of range as in embedding_norm.h.
#pragma once

#include <ATen/ATen.h>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Adds the cross term 2·sum over s,t of b_t[x_s]·⟨e_s,h_t⟩ to parts.value and its error bound to value_error. If
// `parts` already has the norms of the embedding and of the head, the total is exact: ‖G_E + G_H‖². If a unit's total
// value_error exceeds 1e-3 of its value, all three terms of that unit are recomputed in float64. Raises sum_error to
// that of both clipped sums into one buffer, and value_error so far that the upper bound is at least (‖G_E‖ + ‖G_H‖)/2:
// both parts pass through the common sum (kernels/norm_parts/bound.h).
void tied_pair_cross_term(const at::Tensor& ids, const at::Tensor& e, const Segments& embedding_segments,
                          const at::Tensor& h, const at::Tensor& b, const Segments& head_segments, NormParts& parts);

// The last step for a pair whose cross term comes from elsewhere: raises value_error as tied_pair_cross_term does.
// apart: parts.value + parts.value_error before the cross term, float64 [U].
void count_tied_norms(const at::Tensor& apart, NormParts& parts);

// The two uses share one buffer for their clipped sums. Raises parts.sum_error of each unit to the error of
// scaled_sum_rows of head rows of this dtype together with embedding_scaled_sum (kernels/norm_parts.h).
void raise_tied_pair_sum_error(at::ScalarType rows, const Segments& tokens, const Segments& lookups, NormParts& parts);

}  // namespace ghostshard::kernels
