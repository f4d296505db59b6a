// The plan of one logical batch within a memory budget: how each matrix is recorded, which blocks stay gathered, which
// gradients are summed on the rank before they are sent. Pure arithmetic over public numbers; a plan changes the cost
// of a release, never the release.
//
// A logical batch has many microbatches on fixed weights. The choices, each with its price:
//   matrices   hold (per-unit gradients kept) or replay (rows kept, norm by Gram matrices) within the one backward
//              (arXiv:2210.00038), or two pass (nothing kept, forward and backward once more, arXiv:2110.05679); time
//              by kernels::recording_cost. A second pass serves the whole model, so all matrices that can take it do,
//              and it needs accumulated gradients. A head under a softmax may also be recomputed: its logits never
//              stand whole, and are found by tiles three times instead of once
//   weights    keep gathered for the whole batch (one gather) or gather again for each forward and backward
//   gradients  accumulate whole in float32 and reduce once, or stream: reduce each microbatch into the slices (noise
//              first)
// The search starts from the fastest plan of all and takes back, again and again, the choice that costs the fewest
// seconds for each byte it saves at the peak, then puts back what fits again. Of the plans it meets, those that no
// other beats in time and memory are the front; every answer is one of them. A given budget takes the fastest plan
// within it. Without one, the fastest within the machine's room and 1.5 times the step without privacy; beyond the
// latter, if there is room, rather than buy little memory dearly: less than a fifth of the peak for more than a
// twentieth of the time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/planning/memory_budget.h"
#include "dp/planning/step_costs.h"
#include "fsdp/parameters.h"
#include "kernels/recording.h"

namespace ghostshard::dp {

struct PlannedMatrix {
  std::string parameter;
  kernels::LinearShape shape;  // of one rank's part
  bool used_twice = false;     // by a head and an embedding: their rows meet on the tape, so never in two passes
  bool head = false;           // its outputs are logits: float32, in its block's activation_bytes; it may be recomputed
};

// Sizes of one rank's computation, in elements and bytes. Rows are tokens of one microbatch.
struct PlannedBlock {
  std::string name;
  int64_t parameters = 0;               // elements, gathered whole
  int64_t trainable = 0;                // elements with a gradient
  std::vector<PlannedMatrix> matrices;  // trainable ones
  double activation_bytes = 0;          // kept from forward to its own backward, per row
  double working_bytes = 0;             // the most that its backward needs besides, per row
  double message_bytes = 0;             // of its weights on their way, if they travel in codes; 0: as they are
  bool always_gathered = false;         // another block reads one of its matrices
};

struct StepShape {
  int64_t units = 0;          // privacy units in a microbatch, on this rank
  int64_t rows_per_unit = 0;  // mean
  int64_t microbatches = 1;
  int64_t shard_ranks = 1;
  double optimizer_values =
      2;  // float32 kept per owned element: 2 for AdamW, 1 for momentum, 0.51 in 8 bits; b - 1 for noise bands
  double update_bytes = 0;   // that the optimizer's step takes for as long as it lasts: matrices on their way
  int64_t value_bytes = 4;   // of a gathered weight
  int64_t master_bytes = 4;  // of a master weight; a shard of other bytes than value_bytes is rounded before it is sent
  int64_t head_tile_bytes =
      int64_t{32} << 20;  // of a head whose logits are computed again: head_tile_bytes() of the device
  bool records = true;    // false: the same step without privacy, which always accumulates
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
  std::string change;         // what it takes back of the plan before it in the search
  double state_bytes = 0;     // master slices, optimizer, noise and reduced slices
  double gathered_bytes = 0;  // buffers of gathered weights, and of their codes
  double sum_bytes = 0;       // whole float32 gradient sums
  double step_bytes = 0;      // activations and records of one microbatch, at their most
  double update_bytes = 0;    // of the optimizer's step, when no microbatch is under way
  double peak_bytes() const { return state_bytes + gathered_bytes + sum_bytes + std::max(step_bytes, update_bytes); }
  double traffic_bytes = 0;  // sent by one rank for one logical batch
  double extra_seconds = 0;  // modelled: weight gradients, norms, records and traffic of one logical batch on this rank
  double plain_seconds = 0;  // modelled: the rest of the batch's matrix products
  double seconds() const { return plain_seconds + extra_seconds; }
  double extra_flops = 0;  // of norms

  bool two_pass() const;
  kernels::Recording recording_of(const std::vector<PlannedBlock>& model, const std::string& parameter) const;
};

// The peak of the same step without privacy, every block gathered again and gradients accumulated.
double plain_peak_bytes(const std::vector<PlannedBlock>& model, const StepShape& shape);

// The budget is of one rank, for everything that peak_bytes counts. std::invalid_argument if it was given and no choice
// meets it, with the least possible; and for an empty shape.
StepPlan plan_step(const std::vector<PlannedBlock>& model, const StepShape& shape, const MemoryBudget& budget);

// The plans from which plan_step chooses, from the fastest to the smallest, each smaller and slower than the one
// before. std::invalid_argument for an empty shape.
std::vector<StepPlan> plan_front(const std::vector<PlannedBlock>& model, const StepShape& shape);

// Less than a fifth of large's peak saved for more than a twentieth of its time.
bool saves_little_for_much(const StepPlan& large, const StepPlan& small);

// If a budget, or the machine's room, forced a plan that saves little for much: what it costs beside the plan without
// that price, in a sentence with a line's end. Empty for all other plans.
std::string explain_forced_price(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                                 const MemoryBudget& budget);

// A table for people: every block's choices with their bytes and FLOPs, the reasons, and what the budget costs in time.
std::string explain(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                    const MemoryBudget& budget);
// A table of the plans of plan_front, a line each.
std::string explain_front(const std::vector<PlannedBlock>& model, const StepShape& shape);

}  // namespace ghostshard::dp
