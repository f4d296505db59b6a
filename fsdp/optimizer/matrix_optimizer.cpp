#include "fsdp/optimizer/matrix_optimizer.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "fsdp/optimizer/elementwise.h"

namespace ghostshard::fsdp {
namespace {

Chosen both(const Chosen& one, const Chosen& other) {
  return [one, other](const Parameter& p) { return (!one || one(p)) && (!other || other(p)); };
}

}  // namespace

MatrixOptimizer::MatrixOptimizer(ShardedModel& model, const Setting& setting, const Chosen& chosen)
    : model_(model),
      matrices_(whole_matrices(model, both(chosen, setting.matrices), setting.name)),
      weight_decay_(setting.weight_decay),
      exchange_(model, matrices_, setting.rows),
      rest_(make_adamw(model, setting.adamw, StatesAt::kWithModel,
                       both(chosen, [mine = matrices_](const Parameter& p) { return !mine(p); }))) {
  require(weight_decay_ >= 0 && std::isfinite(weight_decay_), "weight_decay must be finite and not negative",
          weight_decay_);
}

at::Tensor MatrixOptimizer::sent_of(const at::Tensor& gradient, const FlatGroup& /*group*/,
                                    const OwnedRange& /*range*/) {
  return gradient;
}

void MatrixOptimizer::step(const ShardBuffers& gradient, double learning_rate) {
  rest_->step(gradient, learning_rate);  // checks the rate, counts, and says that weights have changed
  const at::NoGradGuard no_grad;
  exchange_.run(
      [&](const FlatGroup& group, const OwnedRange& range) {
        return sent_of(gradient.shard(group).narrow(0, range.shard_offset, range.count), group, range);
      },
      [&](const MatrixPart& part, const at::Tensor& sent) { return step_of(part, sent); },
      [&](const FlatGroup& group, const OwnedRange& range, const at::Tensor& values) {
        model_.update_weights(group, range, steps(), [&](const at::Tensor& weights, int64_t first) {
          const at::Tensor step = values.narrow(0, first, weights.numel()).mul(learning_rate);
          weights.mul_(1 - learning_rate * weight_decay_).sub_(step);
        });
      });
  model_.weights_changed();
}

}  // namespace ghostshard::fsdp
