// The one loop body of a private step: forward, backward, perhaps both once more, and into the clipped sum.
#pragma once

#include <functional>

#include "dp/mechanism/clipper.h"
#include "dp/recording/recorder.h"

namespace ghostshard::dp {

// The sum of a microbatch's losses, differentiable. Called twice if some matrix waits for a second pass, with the same
// recorder, and must then compute the same again.
using LossOfMicrobatch = std::function<at::Tensor(const RecorderPtr& recorder)>;

// Adds the clipped gradients of `units` units to the sum and returns the loss, detached. c10::ValueError unless the
// loss is one number. If anything throws, the sum may hold the microbatch in part and can then never be released
// (dp/mechanism/clipper.h). A collective if groups are streamed.
at::Tensor add_microbatch(Clipper& clipper, ClippedSum& sum, int64_t units, const LossOfMicrobatch& loss);

}  // namespace ghostshard::dp
