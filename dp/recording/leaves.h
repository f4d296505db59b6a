// What else a backward gives a gradient: the leaves of a loss's graph.
//
// Recorded layers report to the tape, so no parameter of the model is a leaf. A leaf is a tensor of somebody else's: an
// input, or a parameter outside of the model, whose gradient autograd forms over all units, without clipping and noise.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ghostshard::dp {

struct Leaf {
  at::Tensor tensor;
  // A layer of layers.cpp took it directly: it is the layer's input, or a copy that layers.cpp made of one so that
  // backward reaches the layer.
  bool input_of_layer = false;
};

// Every leaf once, without the scalars that layers.cpp makes. loss: any shape; one without a graph has no leaves.
std::vector<Leaf> leaves_of(const at::Tensor& loss);

}  // namespace ghostshard::dp
