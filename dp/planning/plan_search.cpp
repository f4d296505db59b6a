#include "dp/planning/plan_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "dp/planning/appraisal.h"

namespace ghostshard::dp {
namespace {

using fsdp::Residency;
using kernels::Recording;

// A step of the search from a plan. kRetreat: of all choices that can be taken back, the one that costs the fewest
// seconds for each byte it saves at the peak, and of equal ones the one that saves the most. kRestore: of all that can
// be put back without a higher peak, the one that saves the most seconds. Of equal ones the first considered stays.
enum class Aim { kRetreat, kRestore };

struct Search {
  const std::vector<PlannedBlock>& model;
  const StepShape& shape;
  RecordPrices prices;
};

class Move {
 public:
  Move(Aim aim, const StepPlan& plan, const Search& search)
      : aim_(aim), plan_(plan), model_(search.model), shape_(search.shape), prices_(search.prices) {}

  void gather() {
    best_of_kind_.emplace_back();
    if (shape_.shard_ranks == 1) return;
    const auto [from, to, reason] =
        retreats() ? std::tuple{Residency::kKeep, Residency::kRegather, "gathered again: keeping it does not fit"}
                   : std::tuple{Residency::kRegather, Residency::kKeep, "kept: it fits"};
    consider(blocks([from](const BlockChoice& now, const PlannedBlock& block) {
               return now.residency == from && !block.always_gathered;
             }),
             reason, [to](BlockChoice& c) { c.residency = to; });
  }
  void stream() {
    best_of_kind_.emplace_back();
    if (shape_.shard_ranks == 1 || !shape_.records || plan_.two_pass()) return;
    const auto [from, to, reason] =
        retreats() ? std::tuple{GradientFlow::kAccumulate, GradientFlow::kStreamed,
                                shape_.microbatches == 1 ? "reduced at once: one microbatch needs no sum"
                                                         : "reduced each microbatch: its whole sum does not fit"}
                   : std::tuple{GradientFlow::kStreamed, GradientFlow::kAccumulate, "accumulated: its sum fits"};
    consider(blocks([from](const BlockChoice& now, const PlannedBlock& block) {
               return now.gradients == from && block.trainable > 0;
             }),
             reason, [to](BlockChoice& c) { c.gradients = to; });
  }
  void record_otherwise();
  void recompute_heads();
  // Last, and only if nothing else can be taken back: it costs about a whole step.
  void take_two_passes();

  bool found() const {
    return std::any_of(best_of_kind_.begin(), best_of_kind_.end(), [](const auto& best) { return best.has_value(); });
  }
  // The best of each kind of change that was considered and helps; the best of all first.
  std::vector<StepPlan> plans() && {
    const auto first = std::min_element(best_of_kind_.begin(), best_of_kind_.end(), [&](const auto& a, const auto& b) {
      return a && (!b || better(a->price, b->price));
    });
    std::iter_swap(best_of_kind_.begin(), first);
    std::vector<StepPlan> found;
    for (auto& best : best_of_kind_) {
      if (best) found.push_back(std::move(best->plan));
    }
    return found;
  }

 private:
  struct Price {
    double saved, seconds;
  };
  struct Candidate {
    StepPlan plan;
    Price price;
  };

  bool better(const Price& a, const Price& b) const {
    if (!retreats()) return a.seconds < b.seconds;
    const double of_a = std::max(0.0, a.seconds) * b.saved, of_b = std::max(0.0, b.seconds) * a.saved;
    return of_a < of_b || (of_a == of_b && a.saved > b.saved);
  }
  bool retreats() const { return aim_ == Aim::kRetreat; }
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
  // use. So each kind of change is tried for one block, for two, for three and so on, up to all candidates; and, as
  // blocks differ, for each alone.
  template <typename Change>
  void consider(const std::vector<size_t>& candidates, const char* reason, const Change& change) {
    StepPlan one = plan_, several = plan_;
    size_t changed = 0;
    for (const size_t block : candidates) {
      if (changed > 0) {
        apply(one, block, 1, reason, change);
        one.blocks[block] = plan_.blocks[block];
      }
      apply(several, block, ++changed, reason, change);
    }
  }
  template <typename Change>
  void apply(StepPlan& other, size_t block, size_t changed, const char* reason, const Change& change) {
    change(other.blocks[block]);
    other.blocks[block].reason = reason;
    other.change = std::to_string(changed).append(" block(s) ").append(reason);
    weigh(other);
  }
  void weigh(StepPlan& other) {
    appraise(other, model_, shape_, prices_);
    const Price price{.saved = plan_.peak_bytes() - other.peak_bytes(),
                      .seconds = other.extra_seconds - plan_.extra_seconds};
    if (retreats() ? price.saved <= 0 : price.saved < 0 || price.seconds >= 0) return;
    auto& best = best_of_kind_.back();
    if (!best || better(price, best->price)) best = Candidate{other, price};
  }

  Aim aim_;
  const StepPlan& plan_;
  const std::vector<PlannedBlock>& model_;
  const StepShape& shape_;
  const RecordPrices& prices_;
  std::vector<std::optional<Candidate>> best_of_kind_;
};

// For the matrix in each place of its block, then for all matrices of a block at once.
void Move::record_otherwise() {
  best_of_kind_.emplace_back();
  if (!shape_.records) return;
  const auto recording = blocks([](const BlockChoice& now, const PlannedBlock&) { return !now.recording.empty(); });
  for (const auto& [from, to, reason] :
       {std::tuple{Recording::kHold, Recording::kReplay, "replayed: holding does not fit"},
        std::tuple{Recording::kReplay, Recording::kHold, "held: its rows would not fit"}}) {
    const char* why = retreats() ? reason : "fastest that fits";
    for (size_t m = 0; m < most_matrices(); ++m) {
      consider(recording, why, [&, m](BlockChoice& c) {
        if (m < c.recording.size() && c.recording[m] == from) c.recording[m] = to;
      });
    }
    consider(recording, why, [&](BlockChoice& c) { std::replace(c.recording.begin(), c.recording.end(), from, to); });
  }
}

void Move::recompute_heads() {
  best_of_kind_.emplace_back();
  if (!shape_.records) return;
  for (size_t m = 0; m < most_matrices(); ++m) {
    const auto heads = blocks([&, m](const BlockChoice& now, const PlannedBlock& block) {
      return m < block.matrices.size() && block.matrices[m].head && now.recording[m] != Recording::kTwoPass &&
             (retreats() || now.recording[m] == Recording::kRecompute);
    });
    consider(heads, retreats() ? "recomputed: its logits do not fit" : "fastest that fits",
             [&, m](BlockChoice& c) { c.recording[m] = retreats() ? Recording::kRecompute : Recording::kReplay; });
  }
}

void Move::take_two_passes() {
  if (found() || !shape_.records || plan_.two_pass()) return;
  best_of_kind_.emplace_back();
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
  weigh(other);
}

StepPlan fastest(const Search& search) {
  const auto& [model, shape, prices] = search;
  StepPlan plan = with_all(model, shape.shard_ranks > 1 ? Residency::kKeep : Residency::kRegather);
  for (size_t i = 0; i < model.size(); ++i) {
    BlockChoice& choice = plan.blocks[i];
    choice.reason = "fastest";
    for (size_t m = 0; m < model[i].matrices.size(); ++m) {
      const auto seconds = [&](Recording way) { return prices[i][m].at(static_cast<size_t>(way)).seconds; };
      if (seconds(Recording::kHold) < seconds(Recording::kReplay)) choice.recording[m] = Recording::kHold;
    }
  }
  appraise(plan, model, shape, prices);
  return plan;
}

// Everything that fits again, put back.
StepPlan restored(StepPlan plan, const Search& search) {
  while (true) {
    Move restore(Aim::kRestore, plan, search);
    restore.gather();
    restore.stream();
    restore.record_otherwise();
    restore.recompute_heads();
    if (!restore.found()) return plan;
    const std::string change = plan.change;
    plan = std::move(std::move(restore).plans().front());
    plan.change = change;
  }
}

void descend(const Search& search, bool recompute, std::vector<StepPlan>& found) {
  found.push_back(fastest(search));
  while (true) {
    Move retreat(Aim::kRetreat, found.back(), search);
    retreat.gather();
    retreat.stream();
    retreat.record_otherwise();
    if (recompute) retreat.recompute_heads();
    retreat.take_two_passes();
    if (!retreat.found()) return;
    // The others too: a budget may fall between two plans of the way down.
    auto plans = std::move(retreat).plans();
    std::rotate(plans.begin(), plans.begin() + 1, plans.end());
    for (StepPlan& plan : plans) found.push_back(restored(std::move(plan), search));
  }
}

}  // namespace

std::vector<StepPlan> search_plans(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  const Search search{.model = model, .shape = shape, .prices = record_prices(model, shape)};
  // A head recomputed early may cost more in the end than one never recomputed.
  std::vector<StepPlan> found;
  for (const bool recompute : {true, false}) descend(search, recompute, found);
  return found;
}

}  // namespace ghostshard::dp
