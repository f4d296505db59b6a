// A ghost layer reports to a Recorder in its backward pass instead of returning a weight gradient.
//
// The layers of dp/recording/layers.h compute outputs and input gradients. Everything that concerns their parameters
// goes through a Recorder: the Tape of a private step (dp/recording/tape.h), or the plain accumulator of a run without
// privacy (dp/run/nonprivate.h). A Recorder must outlive the backward pass; layers hold it by shared_ptr. Parameters
// are held by pointer: a graph that may outlive its model has a Recorder that keeps the model too.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>

#include "fsdp/parameters.h"
#include "kernels/aligned_rows.h"
#include "kernels/segments.h"

namespace ghostshard::dp {

class HeadTiles;        // dp/recording/head_tiles.h
enum class TileLogits;  // likewise

using SegmentsPtr = std::shared_ptr<const kernels::Segments>;

// One use of a matrix and, if it has one, its bias.
struct LinearUse {
  const fsdp::Parameter* weight = nullptr;  // [p,d]; if stored_transposed [d,p] (Hugging Face Conv1D)
  const fsdp::Parameter* bias = nullptr;    // [p] or none
  bool stored_transposed = false;
  bool adds_bias = true;  // false: another rank adds it to the output; its gradient is reported all the same
};

struct LayerNormUse {
  const fsdp::Parameter* scale = nullptr;  // d elements, or none
  const fsdp::Parameter* shift = nullptr;  // likewise
};

// Rows have the model's compute dtype. A 16-bit value is exact in float32, so norms and sums are formed from rows
// converted to float32: they are those of exactly the recorded values, and no clip factor ever multiplies a 16-bit
// operand. (Rows of float64 are rounded once; norms and sums are then both those of the rounded rows.)
inline at::Tensor exact_rows(const at::Tensor& x) { return x.scalar_type() == at::kFloat ? x : x.to(at::kFloat); }

// The type in which one call of a kernel takes these rows: float32. On a device 16-bit rows of one format stay as they
// are: tensor cores form their products exactly and sum them in float32, and the rows take half the memory.
template <typename... Tensors>
at::ScalarType kernel_type(const at::Tensor& first, const Tensors&... others) {
  const bool narrow = first.scalar_type() == at::kBFloat16 || first.scalar_type() == at::kHalf;
  const bool alike = ((others.scalar_type() == first.scalar_type()) && ...);
  return narrow && alike && !first.is_cpu() ? first.scalar_type() : at::kFloat;
}
template <typename... Tensors>
std::array<at::Tensor, sizeof...(Tensors)> kernel_rows(const Tensors&... rows) {
  const at::ScalarType type = kernel_type(rows...);
  return {rows.to(type)...};
}
// The same for a matrix, with rows that a device loads at once.
inline std::array<at::Tensor, 2> matrix_rows(const at::Tensor& a_rows, const at::Tensor& g_rows) {
  const at::ScalarType type = kernel_type(a_rows, g_rows);
  return {kernels::aligned_rows(a_rows, type), kernels::aligned_rows(g_rows, type)};
}

// The tensors of a report are read-only and may alias each other: two embeddings that are added up share their gradient
// rows. Frozen parameters are never reported.
class Recorder {
 public:
  virtual ~Recorder() = default;
  // Each layer's backward asks before it looks at a parameter: std::logic_error if this recorder takes nothing more.
  // The parameters may have no values then, or those of a later forward.
  virtual void require_open() const {}
  // a [N,d] inputs, g [N,p] output gradients.
  virtual void linear(const LinearUse& use, const at::Tensor& a, const at::Tensor& g, const SegmentsPtr& segments) = 0;
  // ids int64 [N], g [N,d] gradients of the looked-up rows.
  virtual void embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g,
                         const SegmentsPtr& segments) = 0;
  // x_hat [N,d] normalised inputs, g [N,d] output gradients.
  virtual void layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g,
                          const SegmentsPtr& segments) = 0;
  // gradients [U, shape...]: each unit's own, formed by the caller.
  virtual void instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) = 0;

  // A head's logit gradients may come by tiles instead of whole. Layers ask in forward, with the head's inputs a [N,d];
  // nullopt: whole.
  virtual std::optional<TileLogits> takes_tiles(const fsdp::Parameter& /*weight*/, const at::Tensor& /*a*/,
                                                const SegmentsPtr& /*segments*/) {
    return std::nullopt;
  }
  // The tiles of such a head, each once and in order. g [N, outputs of the tile] of a kept tile is the recorder's; a
  // recomputed one is valid during the call alone, and comes again by tiles->gradients(a, tile, scratch).
  virtual void head_tile(const LinearUse& use, const at::Tensor& /*a*/,
                         const std::shared_ptr<const HeadTiles>& /*tiles*/, int64_t /*tile*/, const at::Tensor& /*g*/,
                         const SegmentsPtr& /*segments*/) {
    throw std::logic_error("this recorder takes the rows of '" + use.weight->name() + "' whole");
  }
  // In forward: backward will report an embedding of these ids. A head by tiles needs to know before its own backward.
  virtual void looked_up(const fsdp::Parameter& /*table*/, const at::Tensor& /*ids*/, const SegmentsPtr& /*segments*/) {
  }
};

using RecorderPtr = std::shared_ptr<Recorder>;

}  // namespace ghostshard::dp
