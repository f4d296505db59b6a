// --sampling: how the texts of each step are chosen.
#pragma once

#include <CLI/CLI.hpp>

#include "dp/mechanism/bins.h"
#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

void add_sampling(CLI::Option_group* group, Options& options);
// std::invalid_argument with one sentence for a combination that there is not.
void check_sampling_of_texts(const Options& options);
// Steps that see as many texts as `epochs` passes over the data: of balls-in-bins sampling whole passes if epochs are
// whole.
double steps_of_epochs(const Options& options, double epochs, int64_t units);

}  // namespace ghostshard::gpt2
