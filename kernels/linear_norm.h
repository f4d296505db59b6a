// Per-unit gradients of a layer that is affine in a matrix: y_t = W a_t, G_u = sum over rows t of u of g_t a_tᵀ.
//
// Shapes: a [N,d], g [N,p], segments over the N rows, G [U,p,d]. Dtypes: float32 (float64 in tests); on a device
// bfloat16 and float16 too, with G in float32. Tensors are contiguous (on a device, 16-bit rows as in aligned_rows.h;
// on a CPU each row of a and g may begin some elements after the end of the one before) and all on one device; the work
// is queued there. A layer stored the other way round (y = a W, W [d,p]) passes a and g exchanged. All functions throw
// std::invalid_argument (rule and shapes) if shapes do not fit; N = 0 and U = 0 are fine.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "kernels/host/unit_norms.h"
#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// Hold. Writes G_u to out [U,p,d], or adds it if `accumulate` (a parameter used twice). Sets parts.value to ‖out[u]‖²
// of exactly the values now in out, and value_error to the error of that sum of squares; mass stays 0.
void per_unit_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, at::Tensor out,
                       bool accumulate, NormParts& parts);

// Replay. Adds ‖G_u‖² = sum over s,t of (a_s·a_t)(g_s·g_t) to parts.value, in tiles of both Gram matrices, of the lower
// triangle only if that pays; adds to value_error and mass and raises sum_error likewise. A unit whose value_error
// exceeds 1e-3 of its value (tokens that cancel) is recomputed in float64, or on a device from the gradient itself, as
// passing_norm does, if that takes less time.
void gram_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts);

// gram_norm of output gradients that come by tiles of outputs, each read once, while it is in the cache. float32 on a
// CPU, of units whose Gram matrix is one tile.
class TiledGramNorm {
 public:
  static bool can_take(const at::Tensor& a, const Segments& segments);
  explicit TiledGramNorm(const Segments& segments);
  // The next tile's g [N, some outputs].
  void take(const at::Tensor& g, const Segments& segments);
  // After all tiles: adds to the same parts as gram_norm. tiles: those that were taken, of any floating dtype that has
  // them exactly, for units whose tokens cancel.
  void add_to(const at::Tensor& a, std::span<const at::Tensor> tiles, const Segments& segments, NormParts& parts) const;

 private:
  std::vector<RowsInPieces> units_;
};

// Two pass. Adds to the same parts as gram_norm, for rows that are not kept. Each unit's norm comes from Gram matrices
// or from the gradient itself, whichever recording_cost finds faster; the gradient is formed in panels of a few MiB
// that are squared, summed and discarded. Its rounding then counts twice: in value_error for the panels, and in
// sum_error for the sum that is formed later.
void passing_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts);

}  // namespace ghostshard::kernels
