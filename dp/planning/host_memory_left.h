// Free memory of a Linux host, as its control groups allow.
#pragma once

#include <filesystem>

namespace ghostshard::dp {

// Bytes that this process and its children may still take: what the kernel calls available (free, or in caches that it
// would drop), or less if a control group (version 1 or 2) that the process is in, or one above it, leaves less. A
// group's own caches count as free. Infinite if nothing can be read. root: "/" but in tests.
double host_memory_left(const std::filesystem::path& root = "/");

}  // namespace ghostshard::dp
