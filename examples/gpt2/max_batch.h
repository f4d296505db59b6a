// --max-batch: truncated Poisson sampling, in as many microbatches in every step.
#pragma once

#include <CLI/CLI.hpp>

#include "dp/mechanism/plan.h"
#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

void add_max_batch(CLI::Option_group* group, Options& options);
// std::invalid_argument with one sentence.
void check_max_batch(const Options& options);
// The number that is given, or with "auto" the smallest that costs at most 0.1 % of the noise: the budget that stands
// in config must be complete.
void set_max_batch(dp::DpConfig& config, const Options& options);

}  // namespace ghostshard::gpt2
