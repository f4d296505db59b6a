// The stretches of an array in host memory, spread over threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace ghostshard::kernels {

// visit(number of the stretch, its first element, its elements) for each stretch of `length` elements; the last may be
// shorter. Several threads call it.
template <typename Visit>
void for_each_stretch(int64_t elements, int64_t length, const Visit& visit) {
  constexpr int64_t kOfOneTask = 64;
  at::parallel_for(0, (elements + length - 1) / length, kOfOneTask, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) visit(s, s * length, std::min(length, elements - s * length));
  });
}

}  // namespace ghostshard::kernels
