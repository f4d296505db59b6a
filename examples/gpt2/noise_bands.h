// --noise-bands, --noise-chain, --noise-blt: correlated noise, its weights chosen for the run's own schedule and for
// the momentum of its optimizers, each weighed by how many elements it trains.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "dp/mechanism/noise_bands.h"
#include "dp/mechanism/noise_blt.h"
#include "dp/mechanism/noise_chain.h"
#include "examples/gpt2/options.h"
#include "examples/gpt2/parameter_rules.h"
#include "fsdp/learning_rate.h"

namespace ghostshard::gpt2 {

void add_noise_bands(CLI::Option_group* group, Options& options);
// std::invalid_argument with one sentence.
void check_noise_bands(const Options& options);
// blocks: the model's, whose trained parameters have the momentum that the rules give them.
dp::NoiseBands noise_bands(const Options& options, const ParameterRules& rules,
                           const std::vector<fsdp::BlockSpec>& blocks, const fsdp::LearningRateSchedule& rate);
dp::NoiseChain noise_chain(const Options& options, const ParameterRules& rules,
                           const std::vector<fsdp::BlockSpec>& blocks, const fsdp::LearningRateSchedule& rate);
// separation: steps between two of one text.
dp::NoiseBlt noise_blt(const Options& options, const ParameterRules& rules, const std::vector<fsdp::BlockSpec>& blocks,
                       const fsdp::LearningRateSchedule& rate, int64_t separation);

}  // namespace ghostshard::gpt2
