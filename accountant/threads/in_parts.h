// Work that falls into pieces which do not depend on each other, on as many threads as the process may use. How it is
// cut follows from the work alone, so the values do not depend on the machine.
#pragma once

#include <cstddef>
#include <functional>

namespace ghostshard::accountant {

// part(first, end) over all of [0, n): at once if that is little work, else cut at multiples of `granule`. nanoseconds:
// of each piece, about. What a part writes belongs to its pieces. The first exception is thrown on, after all threads
// have ended.
void in_parts(size_t n, size_t granule, double nanoseconds, const std::function<void(size_t first, size_t end)>& part);

// For nodes of a line with so many terms each. A part begins as a whole line does, which takes as long as some hundred
// nodes.
inline constexpr size_t kNodesOfAPart = 512;

}  // namespace ghostshard::accountant
