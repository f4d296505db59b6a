#include "dp/planning/step_plan.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "dp/planning/appraisal.h"

namespace ghostshard::dp {
namespace {

using fsdp::Residency;
using kernels::Recording;

// The next step of the search: of all choices of a plan that can be taken back, the one that costs the fewest seconds
// for each byte it saves at the peak. Of equal ones the first considered stays.
class Retreat {
 public:
  Retreat(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape)
      : plan_(plan), model_(model), shape_(shape) {}

  void gather_again() {
    if (shape_.shard_ranks == 1) return;
    consider(blocks([](const BlockChoice& now, const PlannedBlock& block) {
               return now.residency == Residency::kKeep && !block.always_gathered;
             }),
             "gathered again: keeping it does not fit", [](BlockChoice& c) { c.residency = Residency::kRegather; });
  }
  void stream() {
    if (shape_.shard_ranks == 1 || !shape_.records || plan_.two_pass()) return;
    consider(blocks([](const BlockChoice& now, const PlannedBlock& block) {
               return now.gradients == GradientFlow::kAccumulate && block.trainable > 0;
             }),
             "reduced each microbatch: its whole sum does not fit",
             [](BlockChoice& c) { c.gradients = GradientFlow::kStreamed; });
  }
  void record_otherwise();
  // Costs two thirds of the head's own time: for a budget that somebody set.
  void recompute_heads();
  // Last, and only if nothing else can be taken back: it costs about a whole step.
  void take_two_passes();

  bool found() const { return best_.has_value(); }
  StepPlan plan() && { return std::move(best_->plan); }

 private:
  struct Candidate {
    StepPlan plan;
    double saved;
    double seconds;
  };

  template <typename Which>
  std::vector<size_t> blocks(const Which& which) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < model_.size(); ++i) {
      if (which(plan_.blocks[i], model_[i])) found.push_back(i);
    }
    return found;
  }
  size_t most_matrices() const {
    size_t most = 0;
    for (const BlockChoice& now : plan_.blocks) most = std::max(most, now.recording.size());
    return most;
  }
  // Some changes save nothing alone: the first two blocks gathered again need the shared buffers that the others will
  // use. So each kind of change is tried for one block, for two, for three and so on, up to all candidates.
  template <typename Change>
  void consider(const std::vector<size_t>& candidates, const char* reason, const Change& change) {
    StepPlan other = plan_;
    for (const size_t block : candidates) {
      change(other.blocks[block]);
      other.blocks[block].reason = reason;
      consider(other);
    }
  }
  void consider(StepPlan& other) {
    appraise(other, model_, shape_);
    const double saved = plan_.peak_bytes() - other.peak_bytes();
    const double seconds = std::max(0.0, other.extra_seconds - plan_.extra_seconds);
    if (saved > 0 && (!best_ || seconds * best_->saved < best_->seconds * saved)) {
      best_ = Candidate{other, saved, seconds};
    }
  }

  const StepPlan& plan_;
  const std::vector<PlannedBlock>& model_;
  const StepShape& shape_;
  std::optional<Candidate> best_;
};

// For the matrix in each place of its block, then for all matrices of a block at once.
void Retreat::record_otherwise() {
  if (!shape_.records) return;
  const auto recording = blocks([](const BlockChoice& now, const PlannedBlock&) { return !now.recording.empty(); });
  for (const auto& [from, to, reason] :
       {std::tuple{Recording::kHold, Recording::kReplay, "replayed: holding does not fit"},
        std::tuple{Recording::kReplay, Recording::kHold, "held: its rows would not fit"}}) {
    for (size_t m = 0; m < most_matrices(); ++m) {
      consider(recording, reason, [&, m](BlockChoice& c) {
        if (m < c.recording.size() && c.recording[m] == from) c.recording[m] = to;
      });
    }
    consider(recording, reason,
             [&](BlockChoice& c) { std::replace(c.recording.begin(), c.recording.end(), from, to); });
  }
}

void Retreat::recompute_heads() {
  if (!shape_.records) return;
  for (size_t m = 0; m < most_matrices(); ++m) {
    const auto heads = blocks([m](const BlockChoice& now, const PlannedBlock& block) {
      return m < block.matrices.size() && block.matrices[m].head && now.recording[m] != Recording::kTwoPass;
    });
    consider(heads, "recomputed: its logits do not fit",
             [m](BlockChoice& c) { c.recording[m] = Recording::kRecompute; });
  }
}

void Retreat::take_two_passes() {
  if (found() || !shape_.records || plan_.two_pass()) return;
  StepPlan other = plan_;
  for (size_t i = 0; i < model_.size(); ++i) {
    BlockChoice& choice = other.blocks[i];
    choice.gradients = GradientFlow::kAccumulate;
    for (size_t m = 0; m < choice.recording.size(); ++m) {
      if (model_[i].matrices[m].used_twice || choice.recording[m] == Recording::kRecompute) continue;
      choice.recording[m] = Recording::kTwoPass;
      choice.reason = "two passes: no record of it fits";
    }
  }
  consider(other);
}

StepPlan fastest(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  StepPlan plan = with_all(model, shape.shard_ranks > 1 ? Residency::kKeep : Residency::kRegather);
  const kernels::Segments segments = segments_of(shape);
  for (size_t i = 0; i < model.size(); ++i) {
    BlockChoice& choice = plan.blocks[i];
    choice.reason = "fastest";
    for (size_t m = 0; m < model[i].matrices.size(); ++m) {
      const auto seconds = [&](Recording way) {
        return kernels::recording_cost(way, model[i].matrices[m].shape, segments, shape.costs.rates).seconds;
      };
      if (seconds(Recording::kHold) < seconds(Recording::kReplay)) choice.recording[m] = Recording::kHold;
    }
  }
  appraise(plan, model, shape);
  return plan;
}

}  // namespace

bool StepPlan::two_pass() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlockChoice& choice) {
    return std::find(choice.recording.begin(), choice.recording.end(), Recording::kTwoPass) != choice.recording.end();
  });
}

Recording StepPlan::recording_of(const std::vector<PlannedBlock>& model, const std::string& parameter) const {
  for (size_t i = 0; i < model.size(); ++i) {
    for (size_t m = 0; m < model[i].matrices.size(); ++m) {
      if (model[i].matrices[m].parameter == parameter) return blocks[i].recording[m];
    }
  }
  throw std::out_of_range("the plan has no matrix '" + parameter + "'");
}

double plain_peak_bytes(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  StepShape plain = shape;
  plain.records = false;
  StepPlan plan = with_all(model, Residency::kRegather);
  appraise(plan, model, plain);
  return plan.peak_bytes();
}

StepPlan plan_step(const std::vector<PlannedBlock>& model, const StepShape& shape, std::optional<double> budget_bytes) {
  if (!(shape.units >= 1 && shape.rows_per_unit >= 1 && shape.microbatches >= 1 && shape.shard_ranks >= 1)) {
    throw std::invalid_argument(
        "a step to plan must have at least one unit, one row, one microbatch and one rank, got " +
        std::to_string(shape.units) + ", " + std::to_string(shape.rows_per_unit) + ", " +
        std::to_string(shape.microbatches) + " and " + std::to_string(shape.shard_ranks));
  }
  const double budget = budget_bytes.value_or(kDefaultOverPlain * plain_peak_bytes(model, shape));
  StepPlan plan = fastest(model, shape);
  while (plan.peak_bytes() > budget) {
    Retreat retreat(plan, model, shape);
    retreat.gather_again();
    retreat.stream();
    retreat.record_otherwise();
    if (budget_bytes) retreat.recompute_heads();
    retreat.take_two_passes();
    if (!retreat.found()) {
      // Nobody asked for the default: if it is out of reach, the least possible is the answer.
      if (!budget_bytes) return plan;
      throw std::invalid_argument("the memory budget must be at least " + mebibytes(plan.peak_bytes()) +
                                  " for this model and microbatch on each rank, got " + mebibytes(budget) +
                                  "; a smaller --microbatch or --activation-checkpointing needs less");
    }
    plan = std::move(retreat).plan();
  }
  return plan;
}

}  // namespace ghostshard::dp
