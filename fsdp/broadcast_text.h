// A text of rank 0 on every rank: what only one of them may decide, e.g. what it read from a file.
#pragma once

#include <string>

#include "fsdp/mesh.h"

namespace ghostshard::fsdp {

// Rank 0's text, on every rank; the others' argument is ignored. A collective over control().
std::string broadcast_text(Mesh& mesh, const std::string& text);

}  // namespace ghostshard::fsdp
