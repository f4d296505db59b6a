// What else a backward gives a gradient: the leaves of a loss's graph.
//
// Recorded layers report to the tape, so no parameter of the model is a leaf. A leaf is a tensor of somebody else's: an
// input, or a parameter outside of the model, whose gradient autograd forms over all units, without clipping and noise.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ghostshard::dp {

// Marks a leaf that a recorded layer makes of its own so that backward reaches it. Nobody else has it.
void mark_as_of_layer(const at::Tensor& leaf);

// Every leaf once, without those of recorded layers. loss: any shape; one without a graph has no leaves.
std::vector<at::Tensor> leaves_of(const at::Tensor& loss);

}  // namespace ghostshard::dp
