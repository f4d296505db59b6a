// A tape's record of a head that is held, by tiles (dp/recording/head_tiles.h): each tile's logits are freed as the
// units' gradients of its outputs are formed, so the two never stand whole beside each other.
//
// ‖G_u‖² is that of the values held, summed up over tiles in float64.
#pragma once

#include <memory>
#include <vector>

#include "dp/recording/head_tiles.h"
#include "dp/recording/hold_memory.h"
#include "kernels/norm_parts.h"

namespace ghostshard::dp {

class HeldHead {
 public:
  // memory must outlive it. others: the gradients [U,V,d] of another use of the matrix, which the tiles are added to,
  // or undefined.
  HeldHead(std::shared_ptr<const HeadTiles> tiles, SegmentsPtr segments, HoldMemory& memory,
           const at::Tensor& others = {});

  // Takes the tiles in their order: a [N,d] the head's inputs, g [N, outputs] the tile's logit gradients.
  // std::logic_error for any tile but the next.
  void take(int64_t tile, const at::Tensor& a, const at::Tensor& g);
  bool complete() const { return taken_ == tiles_->count(); }
  // After all tiles were taken, another use of the same matrix: by a linear layer with inputs a [M,d] and output
  // gradients g [M,V], or by an embedding of ids int64 [M] with gradients e [M,d]; segments over the M rows.
  void add_linear(const at::Tensor& a, const at::Tensor& g, const kernels::Segments& segments);
  void add_lookup(const at::Tensor& ids, const at::Tensor& e, const kernels::Segments& segments);
  // Sets ‖G_u‖² of all that was added, with its error.
  void set_norm_of(kernels::NormParts& parts) const;
  // out [V,d] += sum over units of factors[u]·G_u.
  void add_to(at::Tensor out, const at::Tensor& factors) const;

  int64_t bytes() const;

 private:
  struct Tile {
    at::Tensor held;  // [U, outputs, d]
    kernels::NormParts squares;
  };

  std::shared_ptr<const HeadTiles> tiles_;
  SegmentsPtr segments_;
  HoldMemory* memory_;
  std::vector<Tile> held_;
  int64_t taken_ = 0;
};

}  // namespace ghostshard::dp
