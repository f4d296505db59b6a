// The operations for tensors on a device. The on_device.cpp of each operation checks the tensors and lays out the work;
// the linked device half computes it. The contracts are those of the named headers; rows may be bfloat16 or float16
// too, with sums in float32.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "kernels/coded_weights.h"
#include "kernels/gaussian_tensor.h"
#include "kernels/norm_parts.h"
#include "kernels/quantised_moments.h"
#include "kernels/segments.h"

namespace ghostshard::kernels::on_device {

// kernels/linear_norm.h
void per_unit_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, at::Tensor out,
                       bool accumulate, const NormParts& parts);
void gram_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const NormParts& parts);
void passing_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const NormParts& parts);

// kernels/scaled_sum.h
void scaled_sum_held(const at::Tensor& held, const at::Tensor& factors, at::Tensor out);
void scaled_sum_rows(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const at::Tensor& factors,
                     at::Tensor out);

// Roundings on the way of one product to scaled_sum_rows' result, for a unit of this many rows of this dtype.
int64_t roundings_of_scaled_sum(at::ScalarType type, int64_t rows);

// kernels/affine_norm.h
void per_unit_row_sum(const at::Tensor& g, const Segments& segments, at::Tensor out, bool accumulate,
                      const NormParts& parts);
void per_unit_product_sum(const at::Tensor& g, const at::Tensor& x_hat, const Segments& segments, at::Tensor out,
                          bool accumulate, const NormParts& parts);

// kernels/embedding_norm.h
void embedding_norm(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, int64_t table_rows,
                    const NormParts& parts);
void embedding_scaled_sum(const at::Tensor& ids, const at::Tensor& e, const Segments& segments,
                          const at::Tensor& factors, at::Tensor out);
void embedding_into_held(const at::Tensor& ids, const at::Tensor& e, const Segments& segments, at::Tensor held,
                         const NormParts& parts);

// kernels/tied_pair.h
void tied_pair_cross_term(const at::Tensor& ids, const at::Tensor& e, const Segments& embedding_segments,
                          const at::Tensor& h, const at::Tensor& b, const Segments& head_segments,
                          const NormParts& parts);

// kernels/fingerprint.h: from the tensors' bytes alone. Waits for the device.
uint64_t sum_of_bits(const at::Tensor& a, const at::Tensor& g);

// kernels/norm_parts.h
at::Tensor norm_upper_bound_sq(const NormParts& parts);
at::Tensor sum_of_norm_bounds(const NormParts& parts, int64_t units);

// kernels/clip_factors.h, kernels/gaussian_tensor.h: the caller has checked the tensors.
at::Tensor clip_factors(const at::Tensor& squared_norms, double limit);
void add_gaussian(const ChaChaKey& key, std::span<const GaussianPart> parts, float scale, const at::Tensor& out);

// kernels/quantised_moments.h: the caller has checked the tensors.
void adamw_step(const AdamWTerms& terms, CodeSign second_sign, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentCodes& moments);
void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient, const at::Tensor& first,
                const at::Tensor& second);
void adamw_step(const AdamWTerms& terms, const at::Tensor& weights, const at::Tensor& gradient,
                const MomentHalves& moments);

// kernels/coded_weights.h: the caller has checked the tensors.
void encode_weights(const at::Tensor& weights, WeightCode code, const at::Tensor& codes, const at::Tensor& scales);
void decode_weights(const at::Tensor& codes, const at::Tensor& scales, WeightCode code, const at::Tensor& weights);

// kernels/rounded_weights.h: the caller has checked the tensors.
void round_weights(const at::Tensor& values, uint32_t stream_of_bits, uint64_t first_element, const at::Tensor& stored);

}  // namespace ghostshard::kernels::on_device
