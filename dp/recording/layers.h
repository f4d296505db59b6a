// Differentiable layers over sharded parameters. Their backward gives the input's gradient and reports the rest to
// a Recorder; no weight gradient ever enters autograd (book-keeping, arXiv:2210.00038).
//
// All tensors are rows: x [N, .], N counts the rows of all units of the microbatch, and segments give each unit its
// rows. Weights are read through Parameter::value() at the moment they are needed, so their block must be gathered then
// (fsdp::run_block gathers it). Without grad mode, or if recorder is null, nothing is saved.
// Rows that backward needs are saved as autograd saves its own, so saved-tensor hooks (activation checkpointing,
// offloading) see them.
// Rows and weights have the model's compute dtype. With bfloat16 the normalisation, softmax and losses are computed in
// float32, and a head's logit gradients are rounded to bfloat16 once, before they are used.
// Shapes that do not fit: std::invalid_argument naming the parameter, the rule and the shapes.
#pragma once

#include "dp/recording/head_tiles.h"
#include "dp/recording/recorder.h"

namespace ghostshard::dp {

// y [N,p] = x [N,d] Wᵀ + b.
at::Tensor linear(const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments, const RecorderPtr& recorder);

// y [N,d] = table[ids]. Lookups of padding_id get no gradient (-1: there is no such id).
at::Tensor embedding(const fsdp::Parameter& table, const at::Tensor& ids, const SegmentsPtr& segments,
                     const RecorderPtr& recorder, int64_t padding_id = -1);

// y [N,d] = x_hat ∘ scale + shift, x_hat = (x − mean)/sqrt(var + epsilon) over the last extent.
at::Tensor layer_norm(const LayerNormUse& use, const at::Tensor& x, double epsilon, const SegmentsPtr& segments,
                      const RecorderPtr& recorder);

// y [N,d] = x ∘ scale + shift (either may be missing): the second half of a normalisation.
at::Tensor affine(const LayerNormUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                  const RecorderPtr& recorder);

// Head and loss in one: −log softmax(h Wᵀ)[target] per row, float32 [M], for h [M,d], targets int64 [M], W [V,d].
// Keeps one [M,V] buffer: logits become probabilities and then logit gradients in place. Losses saturate at 87.3
// (the smallest normal float32 probability); gradients do not. If the recorder takes tiles, and the head has no bias
// and is stored [V,d], only tiles of about tile_bytes stand in memory, each computed three times
// (dp/recording/head_tiles.h); losses do not saturate then.
at::Tensor linear_cross_entropy(const LinearUse& head, const at::Tensor& h, const at::Tensor& targets,
                                const SegmentsPtr& segments, const RecorderPtr& recorder,
                                int64_t tile_bytes = kHeadTileBytes);

}  // namespace ghostshard::dp
