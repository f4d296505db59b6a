// --clipping, and the flags of a clip norm that adapts.
#pragma once

#include <CLI/CLI.hpp>

#include "dp/mechanism/plan.h"
#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

inline constexpr const char* kAdaptive = "adaptive";

void add_clipping(CLI::Option_group* group, Options& options);
// std::invalid_argument with one sentence.
void check_clipping(const Options& options);
// clip_norm, clipping and clip_quantile of the plan.
void set_clipping(dp::DpConfig& config, const Options& options);

}  // namespace ghostshard::gpt2
