// A tape's record of a head whose logit gradients come by tiles (dp/recording/head_tiles.h): the inputs, and a
// fingerprint of each tile. Norms are taken of the tiles as they pass. For the sum the tiles are computed again, and
// their bits must be those whose norm was taken. If the matrix is an embedding too, the columns of each unit's own ids
// are kept, [N, longest lookup], because the two uses meet in the norm.
//
// ‖G_u‖² is the sum over tiles of ‖G_u's rows of that tile‖². The rows as computed are at most mass·gamma longer in
// each tile, and the tiles' parts are orthogonal: so the masses add up in squares (Minkowski). The roundings of these
// few float64 additions are far inside the factors' 2^-22 (dp/mechanism/clipper.h).
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
  // a [N,d]: the inputs. lookup: that of the same matrix; with ids undefined there is none.
  RecomputedHead(std::shared_ptr<const HeadTiles> tiles, at::Tensor a, SegmentsPtr segments, LookedUp lookup);

  // Takes the tiles in their order. g: the tile's logit gradients. std::logic_error for any tile but the next.
  void take(int64_t tile, const at::Tensor& g);
  bool complete() const { return static_cast<int64_t>(fingerprints_.size()) == tiles_->count(); }
  // Adds ‖G_u‖² of the head alone, with its errors; after all tiles were taken.
  void add_norm_to(kernels::NormParts& parts) const;
  // Adds the cross term with the embedding's output gradients e [rows of the lookup, d], in float64, and frees the
  // columns. std::logic_error if the ids are not those that the lookup was announced with.
  // If the two uses nearly cancel, the head's own error stays: the norm is then an upper bound, not the closest one.
  // (Otherwise it is too large by at most twice the sum error times the mass.)
  void add_cross_term_to(const at::Tensor& ids, const at::Tensor& e, kernels::NormParts& parts);
  // out [V,d] += sum over units of factors[u]·G_u, from tiles computed again. parts: the matrix's, with all its uses.
  // The weight must be gathered and unchanged: std::logic_error if a tile's bits are not those that were taken.
  void add_to(at::Tensor out, const at::Tensor& factors, const kernels::NormParts& parts) const;

  const at::Tensor& inputs() const { return a_; }
  const at::Tensor& columns() const { return columns_; }

 private:
  void keep_columns(int64_t tile, const at::Tensor& g);

  std::shared_ptr<const HeadTiles> tiles_;
  at::Tensor a_;
  SegmentsPtr segments_;
  LookedUp lookup_;
  // float32 [N, longest lookup]: each row has its logit gradients of its unit's own ids. Undefined without a lookup.
  at::Tensor columns_;
  kernels::NormParts parts_;
  std::vector<uint64_t> fingerprints_;
};

}  // namespace ghostshard::dp
