// A tape's record of a head that is replayed, by tiles that are kept (dp/recording/head_tiles.h): each tile's logits
// become its gradients, meet the head's norm while they are in the cache, and stay as they are until the sum, which
// frees them one by one. The memory is that of whole logits, but no pass goes over rows as far apart as a vocabulary.
#pragma once

#include <memory>
#include <vector>

#include "dp/recording/head_tiles.h"
#include "kernels/linear_norm.h"
#include "kernels/norm_parts.h"

namespace ghostshard::dp {

class ReplayedHead {
 public:
  // Whether the norm of such a head can be taken by tiles. a [N,d]: the inputs.
  static bool can_take(const at::Tensor& a, const kernels::Segments& segments);
  ReplayedHead(std::shared_ptr<const HeadTiles> tiles, at::Tensor a, SegmentsPtr segments);

  // Takes the tiles in their order. g: the tile's logit gradients, which this keeps. std::logic_error for any tile but
  // the next.
  void take(int64_t tile, const at::Tensor& g);
  bool complete() const { return static_cast<int64_t>(gradients_.size()) == tiles_->count(); }
  // Adds ‖G_u‖² with its errors; after all tiles were taken.
  void add_norm_to(kernels::NormParts& parts) const;
  // out [V,d] += sum over units of factors[u]·G_u. Frees the tiles. parts: the matrix's.
  void add_to(at::Tensor out, const at::Tensor& factors, const kernels::NormParts& parts);

  const at::Tensor& inputs() const { return a_; }
  const SegmentsPtr& segments() const { return segments_; }
  // The tiles side by side [N,V], for another use of the matrix that meets them in the norm.
  at::Tensor whole() const { return at::cat(gradients_, 1); }
  int64_t bytes() const;

 private:
  std::shared_ptr<const HeadTiles> tiles_;
  at::Tensor a_;
  SegmentsPtr segments_;
  kernels::TiledGramNorm norm_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace ghostshard::dp
