// The optimizers of GPT-2's parameters: which of them keep what together, what they take, and the whole of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "examples/gpt2/config.h"
#include "examples/gpt2/parameter_rules.h"
#include "fsdp/granule.h"
#include "fsdp/optimizer.h"
#include "fsdp/sharded_model.h"

namespace ghostshard::gpt2 {

// What a parameter must keep together; none: as the plan likes.
using Granules = std::function<std::optional<fsdp::Granule>(const fsdp::ParameterSpec&)>;
// What parameters must keep together for their optimizers, and what serves these if it costs little padding: Shampoo
// and SOAP need not send tiles that are whole on a rank. lay_out: the model's parameters on its mesh with some
// granules.
using LayOut = std::function<std::unique_ptr<fsdp::ModelLayout>(const Granules&)>;
Granules granules_of(const ParameterRules& rules, const LayOut& lay_out);

// float32 numbers that the optimizers keep on the model's device for each trained element, on average.
double optimizer_values(const Options& options, const ParameterRules& rules,
                        const std::vector<fsdp::BlockSpec>& blocks);

// Bytes that their step takes on a rank beside that for as long as it lasts: of one after the other, the most.
double optimizer_step_bytes(const ParameterRules& rules, const fsdp::ModelLayout& model);

// Weight decay, momentum and the like from the rules. std::invalid_argument for a mesh that an optimizer cannot use.
std::unique_ptr<fsdp::Optimizer> make_optimizer(const Options& options, const ParameterRules& rules,
                                                const Config& config, fsdp::ShardedModel& parameters);

}  // namespace ghostshard::gpt2
