// Linear layers cut over the model axis (Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3).
//
//   x ─ column_split_linear ─ anything by columns ─ row_split_linear ─ y
//
// x and y are whole and bit-equal on all ranks of the model axis; between them each rank has its own columns. The first
// layer holds some of the outputs, weight and bias cut alike. The second holds the rows that read them; its bias is
// whole on every rank. Activations are all-reduced once in forward (after the second layer) and once in backward
// (before the first), in rank order, so that all ranks go on from the same bits.
//
// Per-unit norms: every rank reports its own part of a cut parameter; of a whole one all ranks report the same. The
// Clipper adds up the former over the model axis and counts the latter once. Both functions are collectives over
// mesh.model() in forward and, if x requires grad, in backward: every rank of the model axis must call them in the same
// order on the same rows. With one model rank they are dp::linear. All tensors are rows, as in dp/recording/layers.h.
#pragma once

#include "dp/recording/layers.h"
#include "fsdp/mesh.h"

namespace ghostshard::dp {

// How the parameters of such layers must be cut (fsdp::ParameterSpec::split). sections: how many kinds of columns stand
// side by side in the outputs (3 for queries, keys, values).
struct LinearSplit {
  fsdp::ModelSplit weight, bias;
};
LinearSplit column_split(bool stored_transposed, int64_t sections = 1);
LinearSplit row_split(bool stored_transposed);

// y [N, p/M] = x [N,d] W_rᵀ + b_r for model rank r's part of weight and bias.
at::Tensor column_split_linear(fsdp::Mesh& mesh, const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                               const RecorderPtr& recorder);

// y [N,p] = Σ_r x_r [N, d/M] W_rᵀ + b, whole on every rank.
at::Tensor row_split_linear(fsdp::Mesh& mesh, const LinearUse& use, const at::Tensor& x, const SegmentsPtr& segments,
                            const RecorderPtr& recorder);

}  // namespace ghostshard::dp
