// Which library runs: its version, a digest of its sources and LibTorch's version.
#pragma once

#include <string>

namespace ghostshard::dp {

// The same wherever the same sources were compiled, whatever the machine and the compiler's options.
std::string build_id();

}  // namespace ghostshard::dp
