// What a tape keeps of a head whose logit gradients come by tiles (dp/recording/head_tiles.h): the inputs, and of each
// tile a fingerprint. Norms are taken of the tiles as they pass; for the sum they are computed again, and their bits
// must be those whose norm was taken. Where the matrix is an embedding too, the columns of the unit's own ids are kept,
// [N, longest lookup], because the two uses meet in the norm.
//
// ‖G_u‖² is the sum over tiles of ‖G_u's rows of that tile‖². What is computed of them is at most mass·gamma longer in
// each, and the tiles' parts are orthogonal: so the masses add up in squares (Minkowski). Roundings of these few
// float64 additions are far inside the factors' 2^-22 (dp/mechanism/clipper.h).
#pragma once

#include <memory>
#include <vector>

#include "dp/recording/head_tiles.h"
#include "kernels/norm_parts.h"

namespace ghostshard::dp {

// The ids [N] of one use of a table as embedding.
struct LookedUp {
  at::Tensor ids;
  SegmentsPtr segments;
};

class RecomputedHead {
 public:
  // a [N,d] inputs. lookup: of the same matrix, if any; ids undefined: none.
  RecomputedHead(std::shared_ptr<const HeadTiles> tiles, at::Tensor a, SegmentsPtr segments, LookedUp lookup);

  // The tiles in their order. g: the tile's logit gradients. std::logic_error for another than the next.
  void take(int64_t tile, const at::Tensor& g);
  bool complete() const { return static_cast<int64_t>(fingerprints_.size()) == tiles_->count(); }
  // Adds what is known of ‖G_u‖² of the head alone, once all tiles were taken.
  void add_norm_to(kernels::NormParts& parts) const;
  // Adds the cross term with the embedding's output gradients e [rows of the lookup, d], in float64, and frees the
  // columns. std::logic_error where the ids are not those that the lookup was announced with.
  // Where the two uses nearly cancel, the head's own error stays: the norm is then an upper bound, not the closest one.
  // (Elsewhere it is above by at most twice the sum error times the mass.)
  void add_cross_term_to(const at::Tensor& ids, const at::Tensor& e, kernels::NormParts& parts);
  // out [V,d] += sum over units of factors[u]·G_u, from tiles computed again. The weight must be gathered and
  // unchanged: std::logic_error where a tile's bits are not those that were taken.
  void add_to(at::Tensor out, const at::Tensor& factors) const;

  const at::Tensor& inputs() const { return a_; }
  const at::Tensor& columns() const { return columns_; }

 private:
  void keep_columns(int64_t tile, const at::Tensor& g);

  std::shared_ptr<const HeadTiles> tiles_;
  at::Tensor a_;
  SegmentsPtr segments_;
  LookedUp lookup_;
  at::Tensor columns_;  // float32 [N, longest lookup]: row t of unit u has the gradients of u's own ids, or undefined
  kernels::NormParts parts_;
  std::vector<uint64_t> fingerprints_;
};

}  // namespace ghostshard::dp
