// The training program: with privacy or, to compare, without.
#pragma once

#include "dp/run/stop_signal.h"
#include "examples/gpt2/options.h"
#include "fsdp/mesh.h"

namespace ghostshard::gpt2 {

enum class Ending { kDone, kStopped };

// Reads and checks everything that a user can get wrong (fsdp::AgreedFailure on every rank, nothing written), then
// trains, writes the output folder and prints a summary on rank 0. A collective over the mesh. If a signal to any rank
// asked to stop: kStopped, after the step that was under way, with a checkpoint of it.
Ending finetune(const Options& options, fsdp::Mesh& mesh, dp::StopSignal& stop);

}  // namespace ghostshard::gpt2
