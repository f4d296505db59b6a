#include "dp/head_tiles.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "fsdp/mapped_memory.h"

namespace ghostshard::dp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kMultiple = 64;  // outputs; of what matrix products like

struct Saved : torch::CustomClassHolder {
  Saved(HeadTiles of_head, LinearUse use, SegmentsPtr of_units, RecorderPtr with)
      : tiles(std::move(of_head)), head(use), segments(std::move(of_units)), recorder(std::move(with)) {}
  HeadTiles tiles;
  LinearUse head;
  SegmentsPtr segments;
  RecorderPtr recorder;
};

struct TiledCrossEntropy : Function<TiledCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& h, const LinearUse& head, const at::Tensor& targets,
                            const SegmentsPtr& segments, const RecorderPtr& recorder, int64_t tile_bytes) {
    HeadTiles tiles(head, h, targets, tile_bytes);
    const at::Tensor losses = tiles.losses();
    ctx->save_for_backward({h});
    ctx->saved_data["saved"] =
        c10::IValue::make_capsule(c10::make_intrusive<Saved>(std::move(tiles), head, segments, recorder));
    return losses;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto entry = ctx->saved_data.find("saved");
    TORCH_CHECK(entry != ctx->saved_data.end(), "a ghost layer's backward can run only once per forward");
    const auto saved = c10::static_intrusive_pointer_cast<Saved>(entry->second.toCapsule());
    if (!torch::autograd::get_current_graph_task_keep_graph()) ctx->saved_data.erase(entry);
    const at::NoGradGuard no_grad;
    const at::Tensor rows = ctx->get_saved_variables().at(0).detach();
    const auto tiles = std::make_shared<const HeadTiles>(saved->tiles.weighed(grads[0]));
    // The inputs' gradient is a sum over tiles: in float32, rounded to the rows' dtype once.
    at::Tensor dh;
    if (ctx->needs_input_grad(0)) dh = at::zeros(rows.sizes(), rows.options().dtype(at::kFloat));
    at::Tensor scratch;
    for (int64_t tile = 0; tile < tiles->count(); ++tile) {
      const at::Tensor g = tiles->gradients(rows, tile, scratch);
      if (dh.defined()) {
        g.scalar_type() == at::kFloat ? dh.addmm_(g, tiles->weights(tile)) : dh.add_(at::mm(g, tiles->weights(tile)));
      }
      saved->recorder->head_tile(saved->head, rows, tiles, tile, g, saved->segments);
    }
    if (dh.defined()) dh = dh.to(rows.scalar_type());
    return {dh, {}, {}, {}, {}, {}};
  }
};

}  // namespace

int64_t HeadTiles::width_of(int64_t rows, int64_t outputs, int64_t tile_bytes) {
  const int64_t most = tile_bytes / (std::max<int64_t>(rows, 1) * static_cast<int64_t>(sizeof(float)));
  return std::clamp<int64_t>(most > kMultiple ? most / kMultiple * kMultiple : most, 1, std::max<int64_t>(outputs, 1));
}

HeadTiles::HeadTiles(const LinearUse& head, const at::Tensor& rows, const at::Tensor& targets, int64_t tile_bytes)
    : head_(head),
      outputs_(head.weight->shape().at(0)),
      width_(width_of(rows.size(0), outputs_, tile_bytes)),
      targets_(targets.unsqueeze(1)) {
  const at::NoGradGuard no_grad;
  const auto numbers = rows.options().dtype(at::kFloat);
  const int64_t n = rows.size(0);
  maximum_ = at::full({n, 1}, -std::numeric_limits<float>::infinity(), numbers);
  sum_ = at::zeros({n, 1}, numbers.dtype(at::kDouble));
  target_logit_ = at::zeros({n, 1}, numbers);
  at::Tensor scratch;
  for (int64_t tile = 0; tile < count(); ++tile) {
    const at::Tensor y = logits(rows.detach(), tile, scratch);
    const auto [inside, places] = targets_in(tile);
    target_logit_ = at::where(inside, y.gather(1, places), target_logit_);
    const at::Tensor maximum = at::maximum(maximum_, y.amax(1, /*keepdim=*/true));
    sum_.mul_(maximum_.sub(maximum).exp_());
    sum_.add_(y.sub_(maximum).exp_().sum(1, /*keepdim=*/true));
    maximum_ = maximum;
  }
}

int64_t HeadTiles::count() const { return (outputs_ + width_ - 1) / width_; }

int64_t HeadTiles::outputs(int64_t tile) const { return std::min(width_, outputs_ - first(tile)); }

at::Tensor HeadTiles::weights(int64_t tile) const {
  return head_.weight->value().detach().narrow(0, first(tile), outputs(tile));
}

std::pair<at::Tensor, at::Tensor> HeadTiles::targets_in(int64_t tile) const {
  const at::Tensor place = targets_ - first(tile);
  const at::Tensor inside = place.ge(0).logical_and_(place.lt(outputs(tile)));
  return {inside, place.masked_fill(inside.logical_not(), 0)};
}

at::Tensor HeadTiles::logits(const at::Tensor& rows, int64_t tile, at::Tensor& scratch) const {
  const int64_t n = rows.size(0);
  if (!scratch.defined()) scratch = fsdp::mapped_empty({n * width_}, rows.options());
  at::Tensor y = scratch.narrow(0, 0, n * outputs(tile)).view({n, outputs(tile)});
  at::mm_out(y, rows, weights(tile).t());
  return exact_rows(y);
}

at::Tensor HeadTiles::losses() const { return sum_.log().add_(maximum_).sub_(target_logit_).squeeze(1).to(at::kFloat); }

HeadTiles HeadTiles::weighed(const at::Tensor& loss_gradients) const {
  HeadTiles tiles = *this;
  tiles.weights_ = exact_rows(loss_gradients).unsqueeze(1);
  tiles.weighed_ = tiles.weights_.div(sum_).to(at::kFloat);
  return tiles;
}

at::Tensor HeadTiles::gradients(const at::Tensor& rows, int64_t tile, at::Tensor& scratch) const {
  const at::NoGradGuard no_grad;
  const at::Tensor g = logits(rows, tile, scratch).sub_(maximum_).exp_().mul_(weighed_);
  const auto [inside, places] = targets_in(tile);
  g.scatter_add_(1, places, weights_.neg().masked_fill_(inside.logical_not(), 0));
  return g.to(rows.scalar_type());
}

at::Tensor tiled_cross_entropy(const LinearUse& head, const at::Tensor& h, const at::Tensor& targets,
                               const SegmentsPtr& segments, const RecorderPtr& recorder, int64_t tile_bytes) {
  return TiledCrossEntropy::apply(h, head, targets, segments, recorder, tile_bytes);
}

}  // namespace ghostshard::dp
