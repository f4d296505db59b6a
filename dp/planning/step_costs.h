// How fast the machine is that a step is planned for (dp/planning/step_plan.h). It decides what layers record and what
// travels when, and nothing that is released; but other ways sum in another order, so that a run which is to repeat
// itself bit for bit plans with the same numbers again: they are measured once and kept with the run.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "fsdp/mesh.h"
#include "kernels/machine_rates.h"

namespace ghostshard::dp {

struct StepCosts {
  kernels::MachineRates rates = kernels::usual_rates(at::kCPU, at::kFloat);
  double link_bytes_per_second = 0.9e9;  // that one rank hands to its shard peers; as measured over Gloo on one host

  std::string to_json() const;
  // std::invalid_argument for a text without one of the numbers, or with one that is not finite and > 0.
  static StepCosts from_json(const std::string& text);
};

// The same on every rank, which all of them call. rows: the models' compute dtype. known: to_json of an earlier
// session, as rank 0 has it, or empty. Where models are on the CPU always the usual numbers; on a device what is known,
// or what rank 0 measures there (below a second) and, between ranks, a gather of some megabytes.
StepCosts step_costs(fsdp::Mesh& mesh, at::ScalarType rows, const std::string& known,
                     const kernels::MeasuredLayer& layer = {});

}  // namespace ghostshard::dp
