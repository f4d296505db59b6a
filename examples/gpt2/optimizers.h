// The optimizers that --optimizer names, for GPT-2: which of its parameters keep what together, which are Muon's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "examples/gpt2/config.h"
#include "examples/gpt2/options.h"
#include "fsdp/granule.h"
#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::gpt2 {

// What a parameter must keep together; none: as the plan likes.
using Granules = std::function<std::optional<fsdp::Granule>(const fsdp::ParameterSpec&)>;
// What parameters must keep together for this optimizer, and what serves it if it costs little padding: Shampoo and
// SOAP need not send tiles that are whole on a rank. lay_out: the model's parameters on its mesh with some granules.
using LayOut = std::function<std::unique_ptr<fsdp::ModelLayout>(const Granules&)>;
Granules granules_of(const Options& options, const LayOut& lay_out);

// float32 numbers that the optimizer keeps for each trained element, on average.
double optimizer_values(const Options& options, const std::vector<fsdp::BlockSpec>& blocks);

// Bytes that its step takes on a rank beside that for as long as it lasts.
double optimizer_step_bytes(const Options& options, const fsdp::ModelLayout& model);

// Weight decay, momentum and the like from the options. std::invalid_argument for a mesh that the optimizer cannot use.
std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& options, const Config& config,
                                                fsdp::ShardedModel& parameters);

}  // namespace ghostshard::gpt2
