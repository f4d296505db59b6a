#include "dp/recording/replayed_head.h"

#include <utility>

#include "kernels/scaled_sum.h"

namespace ghostshard::dp {

bool ReplayedHead::can_take(const at::Tensor& a, const kernels::Segments& segments) {
  return a.scalar_type() != at::kDouble && kernels::TiledGramNorm::can_take(a, segments);
}

ReplayedHead::ReplayedHead(std::shared_ptr<const HeadTiles> tiles, at::Tensor a, SegmentsPtr segments)
    : tiles_(std::move(tiles)), a_(std::move(a)), segments_(std::move(segments)), norm_(*segments_) {}

void ReplayedHead::take(int64_t tile, const at::Tensor& g) {
  HeadTiles::require_next(tile, static_cast<int64_t>(gradients_.size()));
  norm_.take(exact_rows(g), *segments_);
  gradients_.push_back(g);
}

void ReplayedHead::add_norm_to(kernels::NormParts& parts) const {
  norm_.add_to(exact_rows(a_), gradients_, *segments_, parts);
}

void ReplayedHead::add_to(at::Tensor out, const at::Tensor& factors, const kernels::NormParts& parts) {
  kernels::scaled_sum_tiles(exact_rows(a_), gradients_, *segments_, factors, out, &parts);
}

int64_t ReplayedHead::bytes() const {
  auto sum = static_cast<int64_t>(a_.nbytes());
  for (const at::Tensor& g : gradients_) sum += static_cast<int64_t>(g.nbytes());
  return sum;
}

}  // namespace ghostshard::dp
