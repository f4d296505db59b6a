// The training program: with privacy or, to compare, without.
#pragma once

#include "examples/gpt2/options.h"
#include "fsdp/mesh.h"

namespace ghostshard::gpt2 {

// Reads and checks everything a user can get wrong (fsdp::AgreedFailure on every rank, nothing written), then trains,
// writes the output folder and prints a summary on rank 0. A collective over the mesh.
void finetune(const Options& options, fsdp::Mesh& mesh);

// --generate and --generate-tokens: one process.
void generate_text(const Options& options);

}  // namespace ghostshard::gpt2
