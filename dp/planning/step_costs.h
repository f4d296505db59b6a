// The machine that a step is planned for (dp/planning/step_plan.h): its speed and its room. They decide what layers
// record and when gradients are sent, and change no release. But other plans sum in another order: a run that shall
// repeat itself bit for bit plans with the same numbers again, so they are measured once and kept with the run.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <string>

#include "fsdp/mesh.h"
#include "kernels/machine_rates.h"

namespace ghostshard::dp {

struct StepCosts {
  kernels::MachineRates rates = kernels::usual_rates(at::kCPU, at::kFloat);
  double link_bytes_per_second = 0.9e9;  // from one rank to its shard peers; as measured over Gloo on one host
  double room_bytes = std::numeric_limits<double>::infinity();  // for a rank (dp/planning/memory_budget.h)

  std::string to_json() const;
  // std::invalid_argument for a text without one of the numbers, or with one that is not finite and > 0. A text without
  // the room leaves it infinite.
  static StepCosts from_json(const std::string& text);
};

// The same on every rank. A collective, before the model is built. rows: the models' compute dtype. known: to_json of
// an earlier session, as rank 0 has it: the result. If that is empty, the room is the ranks' least, and the speeds are
// the usual ones for models on the CPU. On a device rank 0 measures them (below a second), and the ranks time a gather
// of some megabytes.
StepCosts step_costs(fsdp::Mesh& mesh, at::ScalarType rows, const std::string& known,
                     const kernels::MeasuredLayer& layer = {});

}  // namespace ghostshard::dp
