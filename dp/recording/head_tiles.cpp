#include "dp/recording/head_tiles.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "dp/recording/cross_entropy.h"

namespace ghostshard::dp {
namespace {

constexpr int64_t kMultiple = 64;   // outputs: products of matrices are fastest at multiples of it
constexpr int64_t kCacheLine = 16;  // float32 numbers of a cache line
constexpr int64_t kPage = 1024;     // a page: rows this far apart, or a multiple of it, share the lines of a cache

at::Tensor empty_rows(int64_t rows, int64_t columns, const at::TensorOptions& numbers) {
  int64_t stride = (columns + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (stride % kPage == 0) stride += kCacheLine;
  return at::empty({rows, stride}, numbers).narrow(1, 0, columns);
}

}  // namespace

int64_t HeadTiles::width_of(int64_t rows, int64_t outputs, int64_t tile_bytes) {
  const int64_t most = tile_bytes / (std::max<int64_t>(rows, 1) * static_cast<int64_t>(sizeof(float)));
  return std::clamp<int64_t>(most > kMultiple ? most / kMultiple * kMultiple : most, 1, std::max<int64_t>(outputs, 1));
}

HeadTiles::HeadTiles(const LinearUse& head, const at::Tensor& rows, const at::Tensor& targets, int64_t tile_bytes,
                     TileLogits way)
    : head_(head),
      outputs_(head.weight->shape().at(0)),
      width_(width_of(rows.size(0), outputs_, tile_bytes)),
      targets_(targets.unsqueeze(1)) {
  const at::NoGradGuard no_grad;
  const auto numbers = rows.options().dtype(at::kFloat);
  const int64_t n = rows.size(0);
  if (way == TileLogits::kKept) kept_ = std::make_shared<std::vector<at::Tensor>>();
  if (way == TileLogits::kWhole) whole_ = empty_rows(n, outputs_, numbers);
  maximum_ = at::full({n, 1}, -std::numeric_limits<float>::infinity(), numbers);
  sum_ = at::zeros({n, 1}, numbers.dtype(at::kDouble));
  target_logit_ = at::zeros({n, 1}, numbers);
  at::Tensor scratch;
  for (int64_t tile = 0; tile < count(); ++tile) {
    const at::Tensor y = logits(rows.detach(), tile, scratch);
    const auto [inside, places] = places_in(tile, targets_);
    target_logit_ = at::where(inside, y.gather(1, places), target_logit_);
    const at::Tensor maximum = at::maximum(maximum_, y.amax(1, /*keepdim=*/true));
    sum_.mul_(maximum_.sub(maximum).exp_());
    sum_.add_(y.sub_(maximum).exp_().sum(1, /*keepdim=*/true));
    maximum_ = maximum;
    if (way == TileLogits::kRecomputed) continue;
    largest_.push_back(maximum);
    if (kept_) kept_->push_back(y);
    if (kept_ && y.is_alias_of(scratch)) scratch.reset();
  }
}

void HeadTiles::require_next(int64_t tile, int64_t taken) {
  if (tile == taken) return;
  throw std::logic_error("a head's tiles are recorded in their order: expected " + std::to_string(taken) + ", got " +
                         std::to_string(tile));
}

int64_t HeadTiles::count() const { return (outputs_ + width_ - 1) / width_; }

int64_t HeadTiles::outputs(int64_t tile) const { return std::min(width_, outputs_ - first(tile)); }

at::Tensor HeadTiles::weights(int64_t tile) const {
  return head_.weight->value().detach().narrow(0, first(tile), outputs(tile));
}

std::pair<at::Tensor, at::Tensor> HeadTiles::places_in(int64_t tile, const at::Tensor& ids) const {
  const at::Tensor place = ids - first(tile);
  const at::Tensor inside = place.ge(0).logical_and_(place.lt(outputs(tile)));
  return {inside, place.masked_fill(inside.logical_not(), 0)};
}

at::Tensor HeadTiles::logits(const at::Tensor& rows, int64_t tile, at::Tensor& scratch) const {
  const int64_t n = rows.size(0);
  if (whole_.defined() && rows.scalar_type() == at::kFloat) {
    at::Tensor y = columns(tile);
    return at::mm_out(y, rows, weights(tile).t());
  }
  if (!scratch.defined()) scratch = at::empty({n * width_}, rows.options());
  at::Tensor y = scratch.narrow(0, 0, n * outputs(tile)).view({n, outputs(tile)});
  at::mm_out(y, rows, weights(tile).t());
  return whole_.defined() ? columns(tile).copy_(y) : exact_rows(y);
}

at::Tensor HeadTiles::losses() const { return sum_.log().add_(maximum_).sub_(target_logit_).squeeze(1).to(at::kFloat); }

HeadTiles HeadTiles::weighed(const at::Tensor& loss_gradients) const {
  HeadTiles tiles = *this;
  tiles.weights_ = exact_rows(loss_gradients).unsqueeze(1);
  tiles.weighed_ = tiles.weights_.div(sum_).to(at::kFloat);
  if (whole_.defined() && torch::autograd::get_current_graph_task_keep_graph()) tiles.whole_ = whole_.clone();
  return tiles;
}

at::Tensor HeadTiles::take(int64_t tile) const {
  if (whole_.defined()) return columns(tile);
  at::Tensor& kept = kept_->at(static_cast<size_t>(tile));
  if (!kept.defined()) {
    throw std::logic_error("a tile of the head '" + weight().name() + "' was kept for one backward, and comes twice");
  }
  return torch::autograd::get_current_graph_task_keep_graph() ? kept.clone() : std::exchange(kept, {});
}

at::Tensor HeadTiles::gradients(const at::Tensor& rows, int64_t tile, at::Tensor& scratch) const {
  const at::NoGradGuard no_grad;
  const at::Tensor g =
      largest_.empty() ? logits(rows, tile, scratch).sub_(maximum_).exp_().mul_(weighed_)
                       : take(tile).mul_(largest_.at(static_cast<size_t>(tile)).sub(maximum_).exp_().mul_(weighed_));
  const auto [inside, places] = places_in(tile, targets_);
  return subtract_targets(g, places, weights_, inside).to(rows.scalar_type());
}

}  // namespace ghostshard::dp
