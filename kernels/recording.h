// The ways in which a layer that is affine in a matrix can record for the clipped sum, their costs, and the choice
// between them.
#pragma once

#include <cstdint>

#include "kernels/machine_rates.h"
#include "kernels/segments.h"

namespace ghostshard::kernels {

enum class Recording {
  kHold,       // G [U,p,d] itself: the norm of exactly these values, then sum of c·G
  kReplay,     // the rows a and g: Gram norm, then (c·g)ᵀa
  kTwoPass,    // nothing: the norm at once; a second forward and backward give the rows again, then (c·g)ᵀa
  kRecompute,  // for a head under a softmax, its inputs: tiles of logit gradients are computed for the norm and again
};

struct LinearShape {
  int64_t inputs;   // d
  int64_t outputs;  // p
};

// The cost of finding the norms of one layer for these segments and of summing it later. kTwoPass includes the layer's
// own products in the second forward and backward; kRecompute includes those that find the logits twice more.
struct RecordingCost {
  double flops;        // floating-point operations
  double bytes_moved;  // to and from memory
  int64_t bytes_kept;  // memory held until the factors are known, beyond the tensors that autograd keeps anyway
  double seconds;      // modelled; used only to compare the ways with each other
};
RecordingCost recording_cost(Recording way, const LinearShape& shape, const Segments& segments,
                             const MachineRates& rates);

// The faster way that fits: kHold if it is modelled faster and its bytes_kept fit into memory_left_bytes, else kReplay.
// Pure; the reasons are beside the code.
Recording choose_recording(const LinearShape& shape, const Segments& segments, int64_t memory_left_bytes,
                           const MachineRates& rates);

}  // namespace ghostshard::kernels
