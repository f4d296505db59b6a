// Cross-entropy of logits that somebody else made, row by row, with one [N,C] buffer where PyTorch's own takes three
// (log-probabilities, the gradient of nll_loss, the gradient of log_softmax).
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::dp {

// −log softmax(logits)[target] per row, float32 [N] (float64 for float64 logits); 0 where the target is ignore_index.
// logits floating [N,C], targets int64 [N] on the same device, each ignore_index or in [0, C): else c10::IndexError,
// as from PyTorch. Differentiable once: probabilities are kept for backward, which turns them into logits' gradients in
// place (in a copy where the graph is kept). Shapes or dtypes that do not fit: std::invalid_argument.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignore_index);

// Within a backward: the logits' gradient weights·(p − onehot(index)) [N,C] from probabilities p [N,C], index int64
// [N,1] and weights [N,1] of p's dtype. Made in p's memory, unless that backward keeps its graph.
at::Tensor logit_gradients(const at::Tensor& probabilities, const at::Tensor& index, const at::Tensor& weights);

}  // namespace ghostshard::dp
