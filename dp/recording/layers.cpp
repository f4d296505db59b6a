#include "dp/recording/layers.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>

#include "dp/recording/cross_entropy.h"
#include "dp/recording/leaves.h"
#include "fsdp/saved_object.h"

namespace ghostshard::dp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// A layer's backward needs this beside its rows. Parameters are saved as handles: their values live in buffers that
// other blocks reuse between forward and backward.
struct Saved {
  LinearUse linear;
  LayerNormUse norm;
  const fsdp::Parameter* table = nullptr;
  SegmentsPtr segments;
  RecorderPtr recorder;
  at::Tensor ids;  // looked-up ids or targets
  int64_t padding_id = -1;
  at::Tensor mean, inverse_deviation;
  at::Tensor probabilities;
  std::optional<HeadTiles> tiles;
};

// A new record, which the node keeps: forward fills in the rest.
std::shared_ptr<Saved> save(AutogradContext* ctx, const SegmentsPtr& segments, const RecorderPtr& recorder) {
  auto saved = std::make_shared<Saved>();
  saved->segments = segments;
  saved->recorder = recorder;
  fsdp::save_object(ctx, saved);
  return saved;
}

bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

// Taking the record out frees its tensors as soon as they are used; a backward that keeps its graph leaves it there.
// Every backward begins with this, so none reads a parameter for a recorder that takes nothing more.
std::shared_ptr<Saved> take(AutogradContext* ctx) {
  auto saved = fsdp::saved_object<Saved>(ctx);
  TORCH_CHECK(saved != nullptr, "a ghost layer's backward can run only once per forward");
  saved->recorder->require_open();
  if (!keeps_graph()) fsdp::forget_object(ctx);
  return saved;
}

at::Tensor saved_rows(AutogradContext* ctx) { return ctx->get_saved_variables().at(0).detach(); }

bool trainable(const fsdp::Parameter* parameter) { return parameter != nullptr && parameter->trainable(); }

void check_linear(const LinearUse& use, const at::Tensor& x) {
  const auto& shape = use.weight->shape();
  TORCH_CHECK_VALUE(shape.size() == 2, use.weight->name(), " must have two extents, has ", shape.size());
  const int64_t d = use.stored_transposed ? shape[0] : shape[1];
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == d, use.weight->name(), " takes rows of ", d, " values, got ",
                    x.sizes());
}

// y [N,p] = x·w + bias.
void affine_into(at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  bias.defined() ? at::addmm_out(y, bias, x, w) : at::mm_out(y, x, w);
}

// On a CPU a product takes up to half as long again if it writes rows that begin anywhere in a cache line, as those of
// a vocabulary of 50257 do (measured). Such outputs are formed by tiles, and copied while they are in the cache.
constexpr int64_t kTileOutputs = 640;
bool begins_anywhere(const at::Tensor& y) {
  constexpr int64_t kLine = 16;
  return y.is_cpu() && y.scalar_type() == at::kFloat && y.size(1) >= 4 * kTileOutputs && y.size(1) % kLine != 0;
}

void affine_by_tiles(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  const at::Tensor scratch = at::empty({y.size(0) * kTileOutputs}, y.options());
  for (int64_t first = 0; first < y.size(1); first += kTileOutputs) {
    const int64_t outputs = std::min(kTileOutputs, y.size(1) - first);
    at::Tensor tile = scratch.narrow(0, 0, y.size(0) * outputs).view({y.size(0), outputs});
    affine_into(tile, x, w.narrow(1, first, outputs), bias.defined() ? bias.narrow(0, first, outputs) : bias);
    y.narrow(1, first, outputs).copy_(tile);
  }
}

at::Tensor affine_output(const LinearUse& use, const at::Tensor& x) {
  const at::Tensor w = use.weight->value();
  const at::Tensor w_dp = use.stored_transposed ? w : w.t();
  const at::Tensor bias = use.bias != nullptr && use.adds_bias ? use.bias->value() : at::Tensor();
  if (at::GradMode::is_enabled()) return bias.defined() ? at::addmm(bias, x, w_dp) : at::mm(x, w_dp);
  at::Tensor y = at::empty({x.size(0), w_dp.size(1)}, x.options());
  begins_anywhere(y) ? affine_by_tiles(y, x, w_dp, bias) : affine_into(y, x, w_dp, bias);
  return y;
}

at::Tensor input_gradient(const LinearUse& use, const at::Tensor& g) {
  const at::Tensor w = use.weight->value();
  return at::mm(g, use.stored_transposed ? w.t() : w);
}

bool report_linear(const LinearUse& use) { return trainable(use.weight) || trainable(use.bias); }

// Reports the layer's rows and output gradients g, and gives the inputs' gradient, undefined if nobody asked for it.
// rows: the inputs; not read if nothing is reported.
at::Tensor linear_backward(AutogradContext* ctx, const Saved& saved, const at::Tensor& rows, const at::Tensor& g) {
  at::Tensor dx;
  if (ctx->needs_input_grad(0)) dx = input_gradient(saved.linear, g);
  if (report_linear(saved.linear)) saved.recorder->linear(saved.linear, rows, g, saved.segments);
  return dx;
}

struct LinearFunction : Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const LinearUse& use,
                            const SegmentsPtr& segments, const RecorderPtr& recorder) {
    save(ctx, segments, recorder)->linear = use;
    if (report_linear(use)) ctx->save_for_backward({x});
    return affine_output(use, x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = take(ctx);
    const at::Tensor g = grads[0].contiguous();
    const at::Tensor rows = report_linear(saved->linear) ? saved_rows(ctx) : at::Tensor();
    return {linear_backward(ctx, *saved, rows, g), {}, {}, {}};
  }
};

struct EmbeddingFunction : Function<EmbeddingFunction> {
  // anchor: a scalar that requires grad, so that backward reaches a layer whose input is integers.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*anchor*/, const fsdp::Parameter* table,
                            const at::Tensor& ids, const SegmentsPtr& segments, const RecorderPtr& recorder,
                            int64_t padding_id) {
    const auto saved = save(ctx, segments, recorder);
    saved->table = table;
    saved->ids = ids;
    saved->padding_id = padding_id;
    recorder->looked_up(*table, ids, segments);
    return at::index_select(table->value(), 0, ids);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = take(ctx);
    at::Tensor g = grads[0].contiguous();
    if (saved->padding_id >= 0) g = g.masked_fill(saved->ids.eq(saved->padding_id).unsqueeze(1), 0);
    saved->recorder->embedding(*saved->table, saved->ids, g, saved->segments);
    return {{}, {}, {}, {}, {}, {}};
  }
};

// Normalises in float32 whatever the dtype of x: [N,d] in that dtype, and float32 mean and inverse deviation.
std::tuple<at::Tensor, at::Tensor, at::Tensor> normalise(const at::Tensor& x, const LayerNormUse& use, double epsilon) {
  auto [y, mean, inverse_deviation] = at::native_layer_norm(exact_rows(x), {x.size(1)}, exact_rows(use.scale->value()),
                                                            exact_rows(use.shift->value()), epsilon);
  return {y.to(x.scalar_type()), mean, inverse_deviation};
}

at::Tensor affine_values(const LayerNormUse& use, const at::Tensor& x) {
  at::Tensor y = x;
  if (use.scale != nullptr) y = y * use.scale->value().view({-1});
  if (use.shift != nullptr) y = y + use.shift->value().view({-1});
  return y;
}

struct LayerNormFunction : Function<LayerNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const LayerNormUse& use, double epsilon,
                            const SegmentsPtr& segments, const RecorderPtr& recorder) {
    auto [y, mean, inverse_deviation] = normalise(x, use, epsilon);
    const auto saved = save(ctx, segments, recorder);
    saved->norm = use;
    saved->mean = mean;
    saved->inverse_deviation = inverse_deviation;
    ctx->save_for_backward({x});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = take(ctx);
    const at::Tensor g = exact_rows(grads[0].contiguous());
    const at::Tensor rows = exact_rows(saved_rows(ctx));
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = std::get<0>(at::native_layer_norm_backward(g, rows, {rows.size(1)}, saved->mean, saved->inverse_deviation,
                                                      exact_rows(saved->norm.scale->value()),
                                                      exact_rows(saved->norm.shift->value()), {true, false, false}))
               .to(grads[0].scalar_type());
    }
    if (trainable(saved->norm.scale) || trainable(saved->norm.shift)) {
      const at::Tensor x_hat = at::sub(rows, saved->mean).mul_(saved->inverse_deviation);
      saved->recorder->layer_norm(saved->norm, x_hat, g, saved->segments);
    }
    return {dx, {}, {}, {}, {}};
  }
};

struct AffineFunction : Function<AffineFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const LayerNormUse& use,
                            const SegmentsPtr& segments, const RecorderPtr& recorder) {
    save(ctx, segments, recorder)->norm = use;
    if (trainable(use.scale)) ctx->save_for_backward({x});
    return affine_values(use, x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = take(ctx);
    const LayerNormUse& use = saved->norm;
    const at::Tensor g = grads[0].contiguous();
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) dx = use.scale != nullptr ? g * use.scale->value().view({-1}) : g;
    if (trainable(use.scale) || trainable(use.shift)) {
      const at::Tensor rows = trainable(use.scale) ? exact_rows(saved_rows(ctx)) : at::Tensor();
      saved->recorder->layer_norm(use, rows, exact_rows(g), saved->segments);
    }
    return {dx, {}, {}, {}};
  }
};

at::Tensor probabilities_in_place(const at::Tensor& computed) {
  at::Tensor logits = exact_rows(computed);
  at::_softmax_out(logits, logits, 1, false);
  return logits;
}

struct LinearCrossEntropyFunction : Function<LinearCrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& h, const LinearUse& head, const at::Tensor& targets,
                            const SegmentsPtr& segments, const RecorderPtr& recorder) {
    const auto saved = save(ctx, segments, recorder);
    saved->linear = head;
    saved->ids = targets;
    saved->probabilities = probabilities_in_place(affine_output(head, h));
    ctx->save_for_backward({h});
    return losses_of(saved->probabilities, targets.unsqueeze(1));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = take(ctx);
    const at::Tensor rows = saved_rows(ctx);
    const at::Tensor logits = logit_gradients(saved->probabilities, saved->ids.unsqueeze(1), grads[0].unsqueeze(1));
    const at::Tensor g = kernels::aligned_rows(logits, rows.scalar_type());
    if (!keeps_graph()) saved->probabilities = at::Tensor();
    return {linear_backward(ctx, *saved, rows, g), {}, {}, {}, {}};
  }
};

struct Tiling {
  TileLogits logits;
  int64_t bytes;
};

struct TiledCrossEntropyFunction : Function<TiledCrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& h, const LinearUse& head, const at::Tensor& targets,
                            const SegmentsPtr& segments, const RecorderPtr& recorder, const Tiling& tiling) {
    const auto saved = save(ctx, segments, recorder);
    saved->linear = head;
    saved->tiles.emplace(head, h, targets, tiling.bytes, tiling.logits);
    ctx->save_for_backward({h});
    return saved->tiles->losses();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = take(ctx);
    const at::NoGradGuard no_grad;
    const at::Tensor rows = saved_rows(ctx);
    const auto tiles = std::make_shared<const HeadTiles>(saved->tiles->weighed(grads[0]));
    // The inputs' gradient is a sum over tiles: in float32, rounded to the rows' dtype once.
    at::Tensor dh;
    if (ctx->needs_input_grad(0)) dh = at::zeros(rows.sizes(), rows.options().dtype(at::kFloat));
    at::Tensor scratch;
    for (int64_t tile = 0; tile < tiles->count(); ++tile) {
      const at::Tensor g = tiles->gradients(rows, tile, scratch);
      if (dh.defined()) {
        g.scalar_type() == at::kFloat ? dh.addmm_(g, tiles->weights(tile)) : dh.add_(at::mm(g, tiles->weights(tile)));
      }
      if (!tiles->whole().defined()) saved->recorder->head_tile(saved->linear, rows, tiles, tile, g, saved->segments);
    }
    if (tiles->whole().defined() && report_linear(saved->linear)) {
      const at::Tensor g = kernels::aligned_rows(tiles->whole(), rows.scalar_type());
      if (!keeps_graph()) saved->tiles.reset();
      saved->recorder->linear(saved->linear, rows, g, saved->segments);
    }
    if (dh.defined()) dh = dh.to(rows.scalar_type());
    return {dh, {}, {}, {}, {}, {}};
  }
};

// How to cut a head into tiles; nullopt: not at all, for lack of a way or of a gain.
std::optional<Tiling> tiles_of(const LinearUse& head, const at::Tensor& h, int64_t tile_bytes, TileLogits logits) {
  if (!HeadTiles::can_cut(head)) return std::nullopt;
  if (logits == TileLogits::kRecomputed) return Tiling{logits, tile_bytes};
  if (logits == TileLogits::kWhole && !h.is_cpu()) return std::nullopt;
  const int64_t outputs = head.weight->shape().at(0);
  const int64_t bytes = h.is_cpu() ? std::min(tile_bytes, kCachedTileBytes) : tile_bytes;
  return HeadTiles::width_of(h.size(0), outputs, bytes) < outputs ? std::optional(Tiling{logits, bytes}) : std::nullopt;
}

bool recording(const RecorderPtr& recorder) { return recorder != nullptr && at::GradMode::is_enabled(); }

// Backward must reach a layer with something to report even if all below it is frozen.
at::Tensor reachable(const at::Tensor& x, bool reports) {
  if (!reports || x.requires_grad()) return x;
  at::Tensor leaf = x.detach().set_requires_grad(true);
  mark_as_of_layer(leaf);
  return leaf;
}

}  // namespace

at::Tensor linear(const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments, const RecorderPtr& recorder) {
  check_linear(use, x);
  if (!recording(recorder)) return affine_output(use, x);
  return LinearFunction::apply(reachable(x, report_linear(use)), use, segments, recorder);
}

at::Tensor embedding(const fsdp::Parameter& table, const at::Tensor& ids, const SegmentsPtr& segments,
                     const RecorderPtr& recorder, int64_t padding_id) {
  TORCH_CHECK_VALUE(ids.dim() == 1 && ids.scalar_type() == at::kLong, table.name(), " takes int64 ids [N], got ",
                    ids.scalar_type(), " ", ids.sizes());
  if (!recording(recorder) || !table.trainable()) return at::index_select(table.value(), 0, ids);
  const at::Tensor anchor = at::zeros({}, at::kFloat).set_requires_grad(true);
  mark_as_of_layer(anchor);
  return EmbeddingFunction::apply(anchor, &table, ids, segments, recorder, padding_id);
}

at::Tensor layer_norm(const LayerNormUse& use, const at::Tensor& x, double epsilon, const SegmentsPtr& segments,
                      const RecorderPtr& recorder) {
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == use.scale->shape().at(0), use.scale->name(), " takes rows of ",
                    use.scale->shape().at(0), " values, got ", x.sizes());
  if (!recording(recorder)) {
    return std::get<0>(normalise(x, use, epsilon));
  }
  return LayerNormFunction::apply(reachable(x, trainable(use.scale) || trainable(use.shift)), use, epsilon, segments,
                                  recorder);
}

at::Tensor affine(const LayerNormUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                  const RecorderPtr& recorder) {
  for (const fsdp::Parameter* parameter : {use.scale, use.shift}) {
    TORCH_CHECK_VALUE(parameter == nullptr || (x.dim() == 2 && x.size(1) == parameter->numel()), parameter->name(),
                      " takes rows of ", parameter->numel(), " values, got ", x.sizes());
  }
  if (!recording(recorder)) return affine_values(use, x);
  return AffineFunction::apply(reachable(x, trainable(use.scale) || trainable(use.shift)), use, segments, recorder);
}

at::Tensor linear_cross_entropy(const LinearUse& head, const at::Tensor& h, const at::Tensor& targets,
                                const SegmentsPtr& segments, const RecorderPtr& recorder, int64_t tile_bytes) {
  check_linear(head, h);
  TORCH_CHECK_VALUE(targets.dim() == 1 && targets.size(0) == h.size(0), head.weight->name(), ": ", h.size(0),
                    " rows need as many targets, got ", targets.sizes());
  if (!recording(recorder)) {
    const auto tiles = tiles_of(head, h, tile_bytes, TileLogits::kWhole);
    if (tiles) return HeadTiles(head, h, targets, tiles->bytes).losses();
    return losses_of(probabilities_in_place(affine_output(head, h)), targets.unsqueeze(1));
  }
  const at::Tensor reached = reachable(h, report_linear(head));
  const auto wanted = recorder->takes_tiles(*head.weight, h, segments).value_or(TileLogits::kWhole);
  const auto tiles = tiles_of(head, h, tile_bytes, wanted);
  if (!tiles) return LinearCrossEntropyFunction::apply(reached, head, targets, segments, recorder);
  return TiledCrossEntropyFunction::apply(reached, head, targets, segments, recorder, *tiles);
}

}  // namespace ghostshard::dp
