// A linear head under a softmax, by tiles of its outputs.
//
// Forward leaves two numbers for each row, the logits' maximum and the sum of exp(logit − maximum), found in one walk
// over the tiles (arXiv:1805.02867 section 3). gradients() makes a tile of logit gradients w·(softmax − onehot(target))
// from them.
//
// kRecomputed: logits [N,V] never stand whole in memory. Each call computes the tile's logits again, 2·N·d FLOPs for
// each output, by the same operations over the same shapes: its bits repeat as long as those of rows and weight do. A
// caller that relies on that compares fingerprints.
// kKept: forward keeps each tile, and gradients() hands it out once, so that its memory is free for what is made of it.
// kWhole: the tiles are columns of one [N,V] buffer, where their gradients end up. Tiles are for a CPU's cache alone.
// The buffer's rows begin at multiples of a cache line: if V were their distance, as 50257 is, each product that writes
// to it took half as long again, and each that reads it a tenth (measured).
//
// All arithmetic is float32, whatever the rows' dtype; gradients are rounded to that dtype once, before they are used.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dp/recording/recorder.h"

namespace ghostshard::dp {

// The size of one tile, float32.
inline constexpr int64_t kHeadTileBytes = int64_t{32} << 20;
// A GPU is as fast with few large tiles, and its host launches some twenty operations for each.
inline constexpr int64_t kDeviceTileBytes = int64_t{256} << 20;
inline int64_t head_tile_bytes(at::Device device) { return device.is_cpu() ? kHeadTileBytes : kDeviceTileBytes; }
// A tile that is made once stays in a CPU's cache from its product to the last look at it.
inline constexpr int64_t kCachedTileBytes = int64_t{2} << 20;

enum class TileLogits { kRecomputed, kKept, kWhole };

class HeadTiles {
 public:
  // A head can be cut into tiles if it is stored [V,d] and has no bias.
  static bool can_cut(const LinearUse& head) { return head.bias == nullptr && !head.stored_transposed; }
  // Outputs in a tile for `rows` rows, of all V `outputs`: at least 1; a multiple of 64 if 64 fit into tile_bytes.
  static int64_t width_of(int64_t rows, int64_t outputs, int64_t tile_bytes = kHeadTileBytes);

  // rows [N,d] of the weight's dtype, targets int64 [N] in [0,V). The weight must be gathered here and in gradients().
  HeadTiles(const LinearUse& head, const at::Tensor& rows, const at::Tensor& targets,
            int64_t tile_bytes = kHeadTileBytes, TileLogits logits = TileLogits::kRecomputed);

  // −log softmax(logits)[target], float32 [N]; infinite if the target's probability is 0.
  at::Tensor losses() const;
  // The same tiles, with these gradients of the losses (float32 [N]) as the weights w.
  HeadTiles weighed(const at::Tensor& loss_gradients) const;

  // std::logic_error for any tile but the next, where `taken` were recorded.
  static void require_next(int64_t tile, int64_t taken);

  const fsdp::Parameter& weight() const { return *head_.weight; }
  int64_t count() const;
  int64_t first(int64_t tile) const { return tile * width_; }
  int64_t outputs(int64_t tile) const;
  // The weight's rows of the tile's outputs: [outputs, d].
  at::Tensor weights(int64_t tile) const;
  // For ids of any shape: whether each is an output of the tile, and its place in it (0 for the others).
  std::pair<at::Tensor, at::Tensor> places_in(int64_t tile, const at::Tensor& ids) const;
  // The tile's logit gradients [N, outputs] under the weights of weighed(), in the rows' dtype, contiguous. rows: those
  // of the constructor. The result may lie in `scratch`, which the first call makes and which serves one walk over the
  // tiles. A kept tile is given away, unless the backward at hand keeps its graph; std::logic_error for one that was.
  at::Tensor gradients(const at::Tensor& rows, int64_t tile, at::Tensor& scratch) const;
  // kWhole: all tiles' gradients, float32 [N,V], after the walk over them. Rows may be apart (kernels/linear_norm.h).
  const at::Tensor& whole() const { return whole_; }

 private:
  at::Tensor logits(const at::Tensor& rows, int64_t tile, at::Tensor& scratch) const;
  at::Tensor columns(int64_t tile) const { return whole_.narrow(1, first(tile), outputs(tile)); }
  // exp(logit − largest) of a tile that was kept, to be written to, and the factors that make weighed softmax of it.
  at::Tensor take(int64_t tile) const;

  LinearUse head_;
  int64_t outputs_;
  int64_t width_;
  at::Tensor targets_;            // [N,1]
  at::Tensor maximum_;            // float32 [N,1]
  at::Tensor sum_;                // float64 [N,1], of exp(logit − maximum)
  at::Tensor target_logit_;       // float32 [N,1]
  at::Tensor weights_, weighed_;  // float32 [N,1]: the losses' gradients; the same over sum_
  // Unless recomputed: exp(logit − the largest of its tile and of those before it), float32, by tile or whole; and
  // those largest logits by tile.
  std::shared_ptr<std::vector<at::Tensor>> kept_;
  at::Tensor whole_;
  std::vector<at::Tensor> largest_;
};

}  // namespace ghostshard::dp
