// The training program: with privacy or, to compare, without.
#pragma once

#include "examples/gpt2/options.h"
#include "fsdp/mesh.h"

namespace ghostshard::gpt2 {

// Reads and checks everything a user can get wrong (std::invalid_argument), then trains, writes the output folder and
// prints a summary on rank 0. A collective over the mesh that `join` gives; join is called once all checks are done.
void finetune(const Options& options, const std::function<fsdp::Mesh&()>& join);

// --generate and --generate-tokens: one process.
void generate_text(const Options& options);

}  // namespace ghostshard::gpt2
