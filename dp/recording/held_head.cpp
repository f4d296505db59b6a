#include "dp/recording/held_head.h"

#include "kernels/embedding_norm.h"
#include "kernels/linear_norm.h"
#include "kernels/scaled_sum.h"

namespace ghostshard::dp {

HeldHead::HeldHead(std::shared_ptr<const HeadTiles> tiles, SegmentsPtr segments, HoldMemory& memory,
                   const at::Tensor& others)
    : tiles_(std::move(tiles)), segments_(std::move(segments)), memory_(&memory) {
  for (int64_t tile = 0; others.defined() && tile < tiles_->count(); ++tile) {
    const at::Tensor part = others.narrow(1, tiles_->first(tile), tiles_->outputs(tile));
    held_.push_back(
        {memory_->take(part.sizes()).copy_(part), kernels::NormParts::zeros(segments_->units(), memory_->device())});
  }
}

void HeldHead::take(int64_t tile, const at::Tensor& a_rows, const at::Tensor& g_rows) {
  HeadTiles::require_next(tile, taken_);
  const auto [a, g] = matrix_rows(a_rows, g_rows);
  const bool alone = static_cast<int64_t>(held_.size()) == taken_;
  if (alone) {
    held_.push_back({memory_->take({segments_->units(), g.size(1), a.size(1)}),
                     kernels::NormParts::zeros(segments_->units(), memory_->device())});
  }
  Tile& own = held_[static_cast<size_t>(tile)];
  kernels::per_unit_gradient(a, g, *segments_, own.held, /*accumulate=*/!alone, own.squares);
  ++taken_;
}

void HeldHead::add_linear(const at::Tensor& a, const at::Tensor& g, const kernels::Segments& segments) {
  for (int64_t tile = 0; tile < tiles_->count(); ++tile) {
    const auto [rows, part] = matrix_rows(a, g.narrow(1, tiles_->first(tile), tiles_->outputs(tile)).contiguous());
    Tile& own = held_[static_cast<size_t>(tile)];
    kernels::per_unit_gradient(rows, part, segments, own.held, /*accumulate=*/true, own.squares);
  }
}

void HeldHead::add_lookup(const at::Tensor& ids, const at::Tensor& e, const kernels::Segments& segments) {
  const at::Tensor host_ids = ids.cpu();  // once: the rows of each tile are found without waiting for a device
  for (int64_t tile = 0; tile < tiles_->count(); ++tile) {
    const at::Tensor inside = tiles_->places_in(tile, host_ids).first;
    const at::Tensor rows = inside.nonzero().squeeze(1);
    if (rows.size(0) == 0) continue;
    std::vector<int64_t> offsets{0};
    for (int64_t u = 0; u < segments.units(); ++u) {
      const at::Tensor own = inside.narrow(0, segments.begin(u), segments.length(u));
      offsets.push_back(offsets.back() + own.count_nonzero().item<int64_t>());
    }
    const at::Tensor places = rows.to(ids.device());
    Tile& held = held_[static_cast<size_t>(tile)];
    kernels::embedding_into_held(ids.index_select(0, places).sub_(tiles_->first(tile)), e.index_select(0, places),
                                 kernels::Segments(offsets), held.held, held.squares);
  }
}

void HeldHead::set_norm_of(kernels::NormParts& parts) const {
  parts.value.zero_();
  parts.value_error.zero_();
  for (const Tile& tile : held_) {
    parts.value.add_(tile.squares.value);
    parts.value_error.add_(tile.squares.value_error);
  }
  // The additions' own roundings, in float64, of terms that are never negative.
  parts.value_error.add_(parts.value, static_cast<double>(held_.size()) * 0x1p-53);
}

void HeldHead::add_to(at::Tensor out, const at::Tensor& factors) const {
  for (int64_t tile = 0; tile < static_cast<int64_t>(held_.size()); ++tile) {
    const at::Tensor& held = held_[static_cast<size_t>(tile)].held;
    kernels::scaled_sum_held(held.view({held.size(0), held.size(1) * held.size(2)}), factors,
                             out.narrow(0, tiles_->first(tile), held.size(1)).view({-1}));
  }
}

int64_t HeldHead::bytes() const {
  int64_t sum = 0;
  for (const Tile& tile : held_) sum += static_cast<int64_t>(tile.held.nbytes());
  return sum;
}

}  // namespace ghostshard::dp
