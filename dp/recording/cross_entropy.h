// Cross-entropy, row by row, with one [N,C] buffer; PyTorch's own takes three (log-probabilities, the gradient of
// nll_loss, the gradient of log_softmax). cross_entropy() takes logits that the caller made. The heads of
// dp/recording/layers.h and dp/recording/head_tiles.h make theirs themselves, and share the functions after it.
#pragma once

#include <ATen/ATen.h>

namespace ghostshard::dp {

// −log softmax(logits)[target] per row, float32 [N] (float64 for float64 logits); 0 if the target is ignore_index.
// logits floating [N,C], targets int64 [N] on the same device, each ignore_index or in [0, C): else c10::IndexError,
// as from PyTorch. Differentiable once: probabilities are kept for backward, which turns them into logits' gradients in
// place (in a copy if the graph is kept). Shapes or dtypes that do not fit: std::invalid_argument.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignore_index);

// −log p[index] per row [N], from probabilities p [N,C] and index int64 [N,1]. A p below the smallest normal float32 is
// rounded or 0: the row's loss then comes from its logits [N,C] of any floating dtype. Without logits it is that of the
// smallest normal float32, 87.3.
at::Tensor losses_of(const at::Tensor& probabilities, const at::Tensor& index, const at::Tensor& logits = {});

// Within a backward: the logits' gradient weights·(p − onehot(index)) [N,C] from probabilities p [N,C], index int64
// [N,1] and weights [N,1] of p's dtype. Made in p's memory, unless that backward keeps its graph.
at::Tensor logit_gradients(const at::Tensor& probabilities, const at::Tensor& index, const at::Tensor& weights);

// The same for logits that stand in part: weighed [N,C] holds weights·p of some outputs and becomes the gradient, in
// place. inside bool [N,1]: the row's target is one of these outputs, at `index` (elsewhere any valid index);
// undefined: every row's is.
at::Tensor subtract_targets(const at::Tensor& weighed, const at::Tensor& index, const at::Tensor& weights,
                            const at::Tensor& inside = {});

}  // namespace ghostshard::dp
