// Per-unit gradients of a layer that is affine in a matrix: y_t = W a_t, G_u = sum over rows t of u of g_t a_tᵀ.
//
// Shapes: a [N,d], g [N,p], segments over the N rows, G [U,p,d]. Dtypes: float32 (float64 in tests); on a device
// bfloat16 and float16 too, with G in float32. Tensors contiguous and all on one device, where the work is queued. A
// layer stored the other way round (y = a W, W [d,p]) passes a and g exchanged. All functions throw
// std::invalid_argument (rule and shapes) for shapes that do not fit; N = 0 and U = 0 are fine.
#pragma once

#include <ATen/ATen.h>

#include "kernels/machine_rates.h"
#include "kernels/norm_parts.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

// How a layer keeps what the clipped sum needs.
enum class Recording {
  kHold,       // G [U,p,d] itself: norm from exactly these values, then sum of c·G
  kReplay,     // the rows a and g: Gram norm, then (c·g)ᵀa
  kTwoPass,    // nothing: norm at once; the rows come again in a second forward and backward, then (c·g)ᵀa
  kRecompute,  // of a head under a softmax: the inputs; logit gradients are computed by tiles, for the norm and again
};

struct LinearShape {
  int64_t inputs;   // d
  int64_t outputs;  // p
};

// Floating-point operations and bytes moved to norm and later sum one layer for these segments. For kTwoPass with the
// layer's own products in the second forward and backward, for kRecompute with those that find the logits twice more.
struct RecordingCost {
  double flops;
  double bytes_moved;
  int64_t bytes_kept;  // memory held until the factors are known, beyond what autograd keeps anyway
  double seconds;      // modelled; used only to compare the ways with each other
};
RecordingCost recording_cost(Recording way, const LinearShape& shape, const Segments& segments,
                             const MachineRates& rates);

// The faster way that fits: hold if it is modelled faster and its bytes_kept fit into memory_left, else replay.
// Pure; the reasons are beside the code.
Recording choose_recording(const LinearShape& shape, const Segments& segments, int64_t memory_left_bytes,
                           const MachineRates& rates);

// Hold. Writes G_u into out [U,p,d] (accumulate=false) or adds it (a parameter used twice), and sets parts.value to
// ‖out[u]‖² of exactly the values now in out, with value_error the error of that sum of squares; mass stays 0.
void per_unit_gradient(const at::Tensor& a, const at::Tensor& g, const Segments& segments, at::Tensor out,
                       bool accumulate, NormParts& parts);

// Replay. Adds ‖G_u‖² = sum over s,t of (a_s·a_t)(g_s·g_t) to parts.value, in tiles of both Gram matrices, lower
// triangle only where that pays; value_error, mass and sum_error likewise. A unit whose value_error exceeds 1e-3 of
// its value (tokens that cancel) is recomputed in float64, or on a device from the gradient itself as passing_norm
// does, where that takes less time.
void gram_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts);

// Two pass. What gram_norm adds, for rows that are not kept: by Gram matrices or from the gradient itself, formed in
// panels of a few MiB that are summed and forgotten, whichever recording_cost finds faster for each unit. The rows'
// rounding then counts twice: in forming the panels, in value_error, and in forming the sum later, in sum_error.
void passing_norm(const at::Tensor& a, const at::Tensor& g, const Segments& segments, NormParts& parts);

// The tied pair. For one matrix E [V,d] used as embedding (ids [N], output gradients e [N,d], segments s_e) and as
// head (inputs h [M,d], logit gradients b [M,V], segments s_h; the same units): adds the cross term
// 2·sum over s,t of b_t[x_s]·⟨e_s,h_t⟩ to parts.value and its error bound to value_error. With the embedding's and
// the head's own parts in `parts` the total is exact: ‖G_E + G_H‖². If the total's value_error exceeds 1e-3 of its
// value for a unit, the whole of that unit (all three terms) is recomputed in float64.
void tied_cross_term(const at::Tensor& ids, const at::Tensor& e, const Segments& embedding_segments,
                     const at::Tensor& h, const at::Tensor& b, const Segments& head_segments, NormParts& parts);

}  // namespace ghostshard::kernels
