// The clipped sum: out += sum over units of c_u·G_u, in float32, in a fixed order.
//
// What one unit does to the rounding of the others' sum must not exceed what its norm allows. A unit's rows may be far
// larger than their sum (tokens that cancel): added to the common sum one by one, they would wash out the others' last
// digits. So each unit's rows are summed apart, and only that sum meets the others. Units of few rows may share one
// product, which is quicker, if their mass is at most kSharedMass times their norm; then the product's rounding is at
// most gamma(kSharedRows + 2)·kSharedMass·(sum of the units' norms as clipped). docs/guarantee.md, "Rounding", derives
// the bound of the whole sum (DpPlan::rounding_slack).
//
// factors float32 [U]. A unit whose factor is exactly 0 contributes exactly zero: its values are not read (they may be
// infinite or NaN). Throws std::invalid_argument if shapes do not fit.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// The bound that is derived there: the float32 sum over `units` units, each clipped to a norm of at most 1, is at most
// this far from the sum of what each unit adds by itself.
double shared_rounding(int64_t units);

// From held gradients [U, ...] to out [...], both float32 (float64 in tests).
void scaled_sum_held(const at::Tensor& held, const at::Tensor& factors, at::Tensor out);

// Rows of one product that several units share, at most; and the mass of each of them over its norm, at most. Rows of a
// text of T tokens have a mass of about √T norms, so ordinary units share. (Both are measured: scaled_sum_bench.)
constexpr int64_t kSharedRows = 512;
constexpr double kSharedMass = 16;

// From rows, laid out as in linear_norm.h: out [p,d] += (c·g)ᵀ a. On the CPU the narrower of a and g is scaled into a
// temporary, and the rows of units whose factor is 0 are left out; on a device the unit's sum is scaled. parts: those
// of the matrix whose gradient this is, complete, with the bounds that the factors come from. Without them, and on a
// device, units of more than one row never share a product.
void scaled_sum_rows(const at::Tensor& a, const at::Tensor& g, const Segments& segments, const at::Tensor& factors,
                     at::Tensor out, const NormParts* parts = nullptr);

// The same on the CPU for g in tiles of outputs, [N, some] each, side by side; 16-bit tiles count as float32. A tile is
// freed once it has been added.
void scaled_sum_tiles(const at::Tensor& a, std::vector<at::Tensor>& tiles, const Segments& segments,
                      const at::Tensor& factors, at::Tensor out, const NormParts* parts = nullptr);

}  // namespace ghostshard::kernels
