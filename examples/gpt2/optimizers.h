// The optimizers that --optimizer names, for GPT-2: which of its parameters keep what together, which are Muon's.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "examples/gpt2/config.h"
#include "examples/gpt2/options.h"
#include "fsdp/granule.h"
#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::gpt2 {

// What each parameter must keep together for this optimizer; none: as the plan likes.
std::optional<fsdp::Granule> granule_of(const Options& options);

// float32 numbers that the optimizer keeps for each trained element, on average.
double optimizer_values(const Options& options, const std::vector<fsdp::BlockSpec>& blocks);

// Weight decay, momentum and the like from the options. std::invalid_argument for a mesh that the optimizer cannot use.
std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& options, const Config& config,
                                                fsdp::ShardedModel& parameters);

}  // namespace ghostshard::gpt2
