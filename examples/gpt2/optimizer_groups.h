// The file of --optimizer-groups: some parameters' own optimizer, learning rate, weight decay, and so on.
//
//   [[group]]
//   name = "norms and biases"
//   match = ["*.ln_*", "*.bias"]      # globs over names of parameters, as --freeze's
//   weight-decay = 0.1
//   learning-rate-factor = 0.5        # of --learning-rate; or learning-rate, which at the peak is that number
//
// The first group that matches a parameter has it; what none matches follows the flags. Options are called as the flags
// are, and betas = [β1, β2] and epsilon stand beside them. What a group does not say is as the flags say, if its
// optimizer is theirs; else weight decay is, and all others have their defaults. Schedule and warm-up are the run's.
#pragma once

#include <filesystem>
#include <vector>

#include "examples/gpt2/options.h"

namespace ghostshard::gpt2 {

// The groups in their order, with the flags of the run where they say nothing. std::invalid_argument with one sentence
// that names file, line, group, key and value: TOML that is none, keys that are unknown or given twice, wrong types.
// What values may be is check_optimizers()'s affair (examples/gpt2/optimizer_rules.h), and what groups match
// ParameterRules' (examples/gpt2/parameter_rules.h).
std::vector<OptimizerGroup> read_optimizer_groups(const std::filesystem::path& path, const Options& run);

}  // namespace ghostshard::gpt2
