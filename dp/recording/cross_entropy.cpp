#include "dp/recording/cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <limits>

namespace ghostshard::dp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Probabilities below the smallest normal float32 are rounded, or 0.
constexpr double kSmallestProbability = std::numeric_limits<float>::min();

void check(const at::Tensor& logits, const at::Tensor& targets, int64_t ignore_index) {
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.is_floating_point(), "cross_entropy takes floating logits [N,C], got ",
                    logits.scalar_type(), " ", logits.sizes());
  TORCH_CHECK_VALUE(targets.dim() == 1 && targets.size(0) == logits.size(0) && targets.scalar_type() == at::kLong,
                    "cross_entropy takes an int64 target for each of ", logits.size(0), " rows, got ",
                    targets.scalar_type(), " ", targets.sizes());
  const at::Tensor outside = (targets < 0).logical_or_(targets >= logits.size(1)).logical_and_(targets != ignore_index);
  TORCH_CHECK_INDEX(!outside.any().item<bool>(), "a target is out of bounds: they go from 0 to ", logits.size(1) - 1,
                    ", or are ", ignore_index);
}

at::Tensor probabilities_of(const at::Tensor& logits) {
  const bool wide = logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble;
  at::Tensor out = at::empty(logits.sizes(), logits.options().dtype(wide ? logits.scalar_type() : at::kFloat));
  return at::_softmax_out(out, wide ? logits : out.copy_(logits), 1, false);
}

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& targets,
                            int64_t ignore_index) {
    const at::Tensor ignored = targets == ignore_index;
    const at::Tensor index = targets.masked_fill(ignored, 0).unsqueeze(1);
    const at::Tensor probabilities = probabilities_of(logits);
    const at::Tensor losses = losses_of(probabilities, index, logits).masked_fill_(ignored, 0);
    ctx->saved_data["dtype"] = logits.scalar_type();
    ctx->save_for_backward({probabilities, index, ignored});
    return losses;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::NoGradGuard no_grad;
    const at::Tensor weights = grads[0].masked_fill(saved[2], 0).unsqueeze(1);
    const at::Tensor g = logit_gradients(saved[0].detach(), saved[1], weights);
    return {g.to(ctx->saved_data["dtype"].toScalarType()), {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignore_index) {
  check(logits, targets, ignore_index);
  return CrossEntropyFunction::apply(logits, targets, ignore_index);
}

at::Tensor losses_of(const at::Tensor& probabilities, const at::Tensor& index, const at::Tensor& logits) {
  const at::Tensor picked = probabilities.gather(1, index).squeeze(1);
  if (!logits.defined()) return picked.clamp_min(kSmallestProbability).log_().neg_();
  at::Tensor losses = picked.log().neg_();
  const at::Tensor rows = (picked < kSmallestProbability).nonzero().squeeze(1);
  if (rows.size(0) > 0) {
    const at::Tensor x = logits.index_select(0, rows).to(losses.scalar_type());
    losses.index_copy_(0, rows, at::logsumexp(x, 1) - x.gather(1, index.index_select(0, rows)).squeeze(1));
  }
  return losses;
}

at::Tensor logit_gradients(const at::Tensor& probabilities, const at::Tensor& index, const at::Tensor& weights) {
  const bool kept = torch::autograd::get_current_graph_task_keep_graph();
  return subtract_targets(kept ? probabilities * weights : probabilities.mul_(weights), index, weights);
}

at::Tensor subtract_targets(const at::Tensor& weighed, const at::Tensor& index, const at::Tensor& weights,
                            const at::Tensor& inside) {
  const at::Tensor subtracted = weights.neg();
  if (inside.defined()) subtracted.masked_fill_(inside.logical_not(), 0);
  return weighed.scatter_add_(1, index, subtracted);
}

}  // namespace ghostshard::dp
