// A step's operations and a device's kernels, with their times, as Chrome's trace format has them (chrome://tracing,
// ui.perfetto.dev).
#pragma once

#include <functional>
#include <string>

namespace ghostshard::gpt2 {

// Runs `step` and writes what it did. cuda: kernels and copies of the device too. Throws std::runtime_error if the
// profiler of LibTorch cannot be started.
void trace(bool cuda, const std::string& file, const std::function<void()>& step);

}  // namespace ghostshard::gpt2
