// How one logical batch is to be computed within a memory budget: what each layer records, which blocks stay gathered,
// which gradients are summed on the rank before they travel. Pure arithmetic over public numbers; nothing here changes
// what is released, only what it costs.
//
// A logical batch has many microbatches on fixed weights. Choices, each with its price:
//   matrices   hold (per-unit gradients kept) or replay (rows kept, norm by Gram matrices) within the one backward
//              (arXiv:2210.00038), or two pass (nothing kept, forward and backward once more, arXiv:2110.05679); time
//              by kernels::recording_cost. A second pass is one for the whole model, so it is taken for all matrices
//              that may, and it needs accumulated gradients. A head under a softmax may also be recomputed: its logits
//              never stand whole, and are found by tiles three times instead of once (only for a budget that is given)
//   weights    keep gathered for the whole batch (one gather) or gather again for each forward and backward
//   gradients  accumulate whole in float32 and reduce once, or stream: reduce each microbatch into the slices (noise
//   first)
// The planner starts from the fastest of all and, while the peak does not fit, takes back the choice that costs the
// fewest seconds for each byte it saves at the peak.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/planning/step_costs.h"
#include "fsdp/parameters.h"
#include "kernels/recording.h"

namespace ghostshard::dp {

struct PlannedMatrix {
  std::string parameter;
  kernels::LinearShape shape;  // what one rank computes with
  bool used_twice = false;     // by a head and an embedding: their rows meet on the tape, so never in two passes
  bool head = false;           // its outputs are logits: float32, in its block's activation_bytes; it may be recomputed
};

// Sizes in elements and bytes of one rank's computation. Rows are tokens of one microbatch.
struct PlannedBlock {
  std::string name;
  int64_t parameters = 0;               // elements, gathered whole
  int64_t trainable = 0;                // elements with a gradient
  std::vector<PlannedMatrix> matrices;  // trainable ones
  double activation_bytes = 0;          // kept from forward to its own backward, per row
  double working_bytes = 0;             // the most its backward needs beside, per row
  bool always_gathered = false;         // a matrix of it is read elsewhere
};

struct StepShape {
  int64_t units = 0;          // privacy units in a microbatch, on this rank
  int64_t rows_per_unit = 0;  // mean
  int64_t microbatches = 1;
  int64_t shard_ranks = 1;
  int64_t optimizer_values = 2;  // float32 kept per owned element: 2 for AdamW, 1 for momentum
  int64_t value_bytes = 4;       // of a gathered weight
  bool records = true;           // false: the same step without privacy, which always accumulates
  StepCosts costs{};
};

enum class GradientFlow { kAccumulate, kStreamed };

struct BlockChoice {
  fsdp::Residency residency = fsdp::Residency::kRegather;
  GradientFlow gradients = GradientFlow::kAccumulate;
  std::vector<kernels::Recording> recording;  // by matrix
  std::string reason;
};

struct StepPlan {
  std::vector<BlockChoice> blocks;
  double state_bytes = 0;     // master slices, optimizer, noise and reduced slices
  double gathered_bytes = 0;  // buffers of gathered weights
  double sum_bytes = 0;       // whole float32 gradient sums
  double step_bytes = 0;      // activations and records where they are most
  double peak_bytes() const { return state_bytes + gathered_bytes + sum_bytes + step_bytes; }
  double traffic_bytes = 0;  // sent by one rank for one logical batch
  double extra_seconds = 0;  // modelled: norms, records and traffic of one logical batch on this rank
  double extra_flops = 0;    // of norms

  bool two_pass() const;
  kernels::Recording recording_of(const std::vector<PlannedBlock>& model, const std::string& parameter) const;
};

// What the same step without privacy takes where every block is gathered again and gradients are accumulated.
double plain_peak_bytes(const std::vector<PlannedBlock>& model, const StepShape& shape);

// budget_bytes: of one rank, for everything that peak_bytes counts; without one, 1.05 times plain_peak_bytes. Throws
// std::invalid_argument for a budget that no choice meets, saying what the least would be, and for an empty shape.
StepPlan plan_step(const std::vector<PlannedBlock>& model, const StepShape& shape, std::optional<double> budget_bytes);

// A table for people: every block's choices with bytes and FLOPs, and why.
std::string explain(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                    std::optional<double> budget_bytes);

}  // namespace ghostshard::dp
