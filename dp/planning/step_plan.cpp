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
  // Costs two thirds of the head's own time: only for a given budget.
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
    size_t changed = 0;
    for (const size_t block : candidates) {
      change(other.blocks[block]);
      other.blocks[block].reason = reason;
      other.change = std::to_string(++changed) + " block(s) " + reason;
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
  other.change = "two passes: no record fits";
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

// The plans that the search passes through, each smaller than the one before.
class Path {
 public:
  Path(const std::vector<PlannedBlock>& model, const StepShape& shape, bool any_price)
      : model_(model), shape_(shape), any_price_(any_price), plans_{fastest(model, shape)} {}

  // False if nothing can be taken back.
  bool go_on() {
    Retreat retreat(plans_.back(), model_, shape_);
    retreat.gather_again();
    retreat.stream();
    retreat.record_otherwise();
    if (any_price_) retreat.recompute_heads();
    retreat.take_two_passes();
    if (!retreat.found()) return false;
    plans_.push_back(std::move(retreat).plan());
    return true;
  }
  // The first plan within the bytes; false if there is none, and the path ends with the smallest.
  bool reach(double bytes) {
    while (plans_.back().peak_bytes() > bytes) {
      if (!go_on()) return false;
    }
    return true;
  }
  const std::vector<StepPlan>& plans() const { return plans_; }

 private:
  const std::vector<PlannedBlock>& model_;
  const StepShape& shape_;
  bool any_price_;
  std::vector<StepPlan> plans_;
};

// Little memory for much time.
bool dear(const StepPlan& large, const StepPlan& small) {
  return small.peak_bytes() > 0.8 * large.peak_bytes() && small.seconds() > 1.05 * large.seconds();
}

StepPlan plan_by_room(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  const double room = shape.costs.room_bytes;
  Path path(model, shape, /*any_price=*/false);
  path.reach(std::min(room, kDefaultOverPlain * plain_peak_bytes(model, shape)));
  const auto& plans = path.plans();
  // If even the smallest is too large it is the answer: nobody asked for a limit.
  size_t chosen = plans.size() - 1;
  for (size_t larger = chosen; larger > 0; --larger) {
    const StepPlan& before = plans[larger - 1];
    if (before.peak_bytes() > room) break;
    if (dear(before, plans[chosen])) chosen = larger - 1;
  }
  return plans[chosen];
}

void check(const StepShape& shape) {
  if (shape.units >= 1 && shape.rows_per_unit >= 1 && shape.microbatches >= 1 && shape.shard_ranks >= 1) return;
  throw std::invalid_argument("a step to plan must have at least one unit, one row, one microbatch and one rank, got " +
                              std::to_string(shape.units) + ", " + std::to_string(shape.rows_per_unit) + ", " +
                              std::to_string(shape.microbatches) + " and " + std::to_string(shape.shard_ranks));
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

StepPlan plan_step(const std::vector<PlannedBlock>& model, const StepShape& shape, const MemoryBudget& budget) {
  check(shape);
  if (!budget.given()) return plan_by_room(model, shape);
  const double bytes = budget.bytes ? *budget.bytes : *budget.times_plain * plain_peak_bytes(model, shape);
  Path path(model, shape, /*any_price=*/true);
  if (!path.reach(bytes)) {
    throw std::invalid_argument("the memory budget must be at least " + mebibytes(path.plans().back().peak_bytes()) +
                                " for this model and microbatch on each rank, got " + mebibytes(bytes) +
                                "; a smaller --microbatch or --activation-checkpointing needs less");
  }
  return path.plans().back();
}

std::vector<StepPlan> plan_front(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  check(shape);
  Path path(model, shape, /*any_price=*/true);
  while (path.go_on()) {
  }
  // A step of the search may win memory and time at once. Then the plan before it is of no use.
  std::vector<StepPlan> front;
  for (const StepPlan& plan : path.plans()) {
    while (!front.empty() && front.back().seconds() >= plan.seconds()) front.pop_back();
    front.push_back(plan);
  }
  return front;
}

}  // namespace ghostshard::dp
