// The speed of the machine that a step is planned for (dp/planning/step_plan.h). It decides what layers record and when
// gradients are sent, and changes no release. But other plans sum in another order: a run that shall repeat itself bit
// for bit plans with the same numbers again, so they are measured once and kept with the run.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "fsdp/mesh.h"
#include "kernels/machine_rates.h"

namespace ghostshard::dp {

struct StepCosts {
  kernels::MachineRates rates = kernels::usual_rates(at::kCPU, at::kFloat);
  double link_bytes_per_second = 0.9e9;  // from one rank to its shard peers; as measured over Gloo on one host

  std::string to_json() const;
  // std::invalid_argument for a text without one of the numbers, or with one that is not finite and > 0.
  static StepCosts from_json(const std::string& text);
};

// The same on every rank. A collective. rows: the models' compute dtype. known: to_json of an earlier session, as rank
// 0 has it, or empty. For models on the CPU the result is always the usual numbers. On a device it is `known`; if that
// is empty, rank 0 measures its device (below a second), and the ranks time a gather of some megabytes.
StepCosts step_costs(fsdp::Mesh& mesh, at::ScalarType rows, const std::string& known,
                     const kernels::MeasuredLayer& layer = {});

}  // namespace ghostshard::dp
