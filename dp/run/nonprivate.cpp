#include "dp/run/nonprivate.h"

#include <ATen/core/grad_mode.h>

#include <tuple>

#include "dp/recording/head_tiles.h"

namespace ghostshard::dp {
namespace {

// out += leftᵀ·right. 16-bit rows on a GPU go through its tensor cores, which sum in float32.
void add_product(at::Tensor out, const at::Tensor& left, const at::Tensor& right) {
  if (left.is_cuda() && left.scalar_type() != at::kFloat && left.scalar_type() == right.scalar_type()) {
    at::Tensor product = at::empty_like(out);
    out.add_(at::mm_out(product, left.t(), right, at::kFloat));
  } else {
    out.addmm_(exact_rows(left).t(), exact_rows(right));
  }
}

}  // namespace

void PlainRecorder::linear(const LinearUse& use, const at::Tensor& a_rows, const at::Tensor& g_rows,
                           const SegmentsPtr& /*segments*/) {
  const at::NoGradGuard no_grad;
  if (use.weight->trainable()) {
    const auto& [left, right] = use.stored_transposed ? std::tie(a_rows, g_rows) : std::tie(g_rows, a_rows);
    add_product(sums_.view(*use.weight), left, right);
  }
  if (use.bias != nullptr && use.bias->trainable()) sums_.view(*use.bias).add_(exact_rows(g_rows).sum(0));
}

void PlainRecorder::embedding(const fsdp::Parameter& table, const at::Tensor& ids, const at::Tensor& g,
                              const SegmentsPtr& /*segments*/) {
  const at::NoGradGuard no_grad;
  sums_.view(table).index_add_(0, ids, exact_rows(g));
}

void PlainRecorder::layer_norm(const LayerNormUse& use, const at::Tensor& x_hat, const at::Tensor& g_rows,
                               const SegmentsPtr& /*segments*/) {
  const at::NoGradGuard no_grad;
  const at::Tensor g = exact_rows(g_rows);
  if (use.scale != nullptr && use.scale->trainable()) sums_.view(*use.scale).add_(at::mul(g, x_hat).sum(0));
  if (use.shift != nullptr && use.shift->trainable()) sums_.view(*use.shift).add_(g.sum(0));
}

void PlainRecorder::instantiated(const fsdp::Parameter& parameter, const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  sums_.view(parameter).add_(exact_rows(gradients).sum(0));
}

std::optional<TileLogits> PlainRecorder::takes_tiles(const fsdp::Parameter& weight, const at::Tensor& /*a*/,
                                                     const SegmentsPtr& /*segments*/) {
  return weight.trainable() ? std::optional(TileLogits::kKept) : std::nullopt;
}

void PlainRecorder::head_tile(const LinearUse& use, const at::Tensor& a, const std::shared_ptr<const HeadTiles>& tiles,
                              int64_t tile, const at::Tensor& g, const SegmentsPtr& /*segments*/) {
  const at::NoGradGuard no_grad;
  add_product(sums_.view(*use.weight).narrow(0, tiles->first(tile), g.size(1)), g, a);
}

PlainAccumulator::PlainAccumulator(fsdp::GroupedParameters& model, double divisor)
    : model_(model),
      divisor_(divisor),
      sums_(model),
      recorder_(std::make_shared<PlainRecorder>(sums_)),
      slices_(model),
      reduction_(model, [this](const fsdp::FlatGroup& group) { return slices_.shard(group).zero_(); }) {}

const fsdp::ShardBuffers& PlainAccumulator::reduce() {
  const auto divide = [&](const fsdp::FlatGroup* finished) {
    if (finished != nullptr) slices_.shard(*finished).mul_(1 / divisor_);
  };
  reduction_.forget();  // of a step that failed
  for (const auto& group : model_.groups()) {
    if (group->trainable()) divide(reduction_.push(*group, sums_.flat(*group)));
  }
  divide(reduction_.drain());
  return slices_;
}

PoissonSampler nonprivate_sampler(const RunKey& key, int64_t units, int64_t expected_batch, int64_t rank,
                                  int64_t world_size) {
  TORCH_CHECK_VALUE(expected_batch >= 1 && expected_batch <= units,
                    "the expected batch must be between 1 and the number of units (", units, "), got ", expected_batch);
  return {key, units, expected_batch, rank, world_size};
}

}  // namespace ghostshard::dp
