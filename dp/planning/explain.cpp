#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "dp/planning/appraisal.h"

namespace ghostshard::dp {
namespace {

using kernels::Recording;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// "hold", or "2 hold, 1 replay" for a block whose matrices are recorded in several ways.
std::string ways_of(const BlockChoice& choice) {
  const auto count = static_cast<int64_t>(choice.recording.size());
  std::string text;
  for (const auto& [way, name] : {std::pair{Recording::kHold, "hold"},
                                  {Recording::kReplay, "replay"},
                                  {Recording::kRecompute, "recompute"},
                                  {Recording::kTwoPass, "two pass"}}) {
    const int64_t matrices = std::count(choice.recording.begin(), choice.recording.end(), way);
    if (matrices == 0) continue;
    text += (text.empty() ? "" : ", ") + (matrices == count ? std::string() : std::to_string(matrices) + " ") + name;
  }
  return text;
}

std::string explain_block(const PlannedBlock& block, const BlockChoice& choice, const StepShape& shape) {
  const kernels::Segments segments = segments_of(shape);
  double recorded = 0, flops = 0;
  for (size_t m = 0; m < block.matrices.size() && shape.records; ++m) {
    recorded += recorded_bytes(choice.recording[m], block.matrices[m], shape);
    flops += norm_flops(choice.recording[m], block.matrices[m], shape, segments);
  }
  const bool streamed = choice.gradients == GradientFlow::kStreamed;
  const char* weights = shape.shard_ranks == 1                       ? "in place"
                        : choice.residency == fsdp::Residency::kKeep ? "keep"
                                                                     : "gather again";
  const char* gradients = block.trainable == 0 ? "-" : streamed ? "streamed" : "accumulate";
  const std::string ways = block.matrices.empty() || !shape.records ? "-" : ways_of(choice);
  const double sum = streamed ? 0 : kFloatBytes * static_cast<double>(block.trainable);
  char line[512];
  std::snprintf(line, sizeof line, "%-24s %-13s %-12s %-14s %12s %12s %12s %11.2f  %s\n", block.name.c_str(), weights,
                gradients, ways.c_str(), mebibytes(gathered_bytes_of(block, shape)).c_str(), mebibytes(sum).c_str(),
                mebibytes(recorded).c_str(), flops / 1e9, choice.reason.c_str());
  return line;
}

std::string explain_memory(const StepPlan& plan, const std::string& budget) {
  const std::string update =
      plan.update_bytes > 0 ? " or the optimizer's step " + mebibytes(plan.update_bytes) + " (the larger)" : "";
  return "Memory on a rank: weights, optimizer and messages " + mebibytes(plan.state_bytes) + ", gathered " +
         mebibytes(plan.gathered_bytes) + ", gradient sums " + mebibytes(plan.sum_bytes) + ", one microbatch " +
         mebibytes(plan.step_bytes) + update + "; together " + mebibytes(plan.peak_bytes()) + " (" + budget +
         "), beside the program's own code and libraries\n";
}

std::string explain_budget(const StepPlan& plan, double plain, double room, const MemoryBudget& budget) {
  if (budget.bytes) return "budget " + mebibytes(*budget.bytes);
  char factor[32];
  std::snprintf(factor, sizeof factor, "%.4g", budget.times_plain.value_or(kDefaultOverPlain));
  const std::string of_plain = std::string(factor) + " times the step without privacy";
  if (budget.times_plain) return "budget " + of_plain + ", " + mebibytes(*budget.times_plain * plain);
  std::string text = "no budget: at most " + of_plain + ", " + mebibytes(kDefaultOverPlain * plain);
  if (std::isfinite(room)) text += ", and the " + mebibytes(room) + " that this machine has for a rank";
  if (plan.peak_bytes() > room) return text + "; out of reach: this is the least";
  if (plan.peak_bytes() > kDefaultOverPlain * plain) text += "; less would cost too much time";
  return text;
}

// "1.8 times the time of the fastest plan, for 40 MiB less"; nothing for the fastest.
std::string explain_price(const StepPlan& plan, const StepPlan& fastest) {
  if (plan.seconds() <= fastest.seconds()) return "This is the fastest plan.\n";
  char line[160];
  std::snprintf(line, sizeof line, "By the planner's count: %.2f times the time of the fastest plan, for %s less\n",
                plan.seconds() / fastest.seconds(), mebibytes(fastest.peak_bytes() - plan.peak_bytes()).c_str());
  return line;
}

}  // namespace

std::string explain_forced_price(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                                 const MemoryBudget& budget) {
  for (const StepPlan& larger : plan_front(model, shape)) {  // the fastest first
    if (!saves_little_for_much(larger, plan)) continue;
    char line[320];
    std::snprintf(line, sizeof line,
                  "%s forces a plan that takes %.2f times the time for %s less, by the planner's count: with %s a rank "
                  "could use the faster one\n",
                  budget.given() ? "The memory budget" : "This machine's free memory",
                  plan.seconds() / larger.seconds(), mebibytes(larger.peak_bytes() - plan.peak_bytes()).c_str(),
                  mebibytes(larger.peak_bytes()).c_str());
    return line;
  }
  return "";
}

std::string explain(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                    const MemoryBudget& budget) {
  std::string text = "Plan of one logical batch: " + std::to_string(shape.microbatches) + " microbatch(es) of " +
                     std::to_string(shape.units) + " unit(s) with about " + std::to_string(shape.rows_per_unit) +
                     " tokens each, " + std::to_string(shape.shard_ranks) + " shard rank(s)\n";
  char heading[512];
  std::snprintf(heading, sizeof heading, "%-24s %-13s %-12s %-14s %12s %12s %12s %11s  %s\n", "block", "weights",
                "gradients", "matrices", "gathered", "sum", "recorded", "norm GFLOP", "why");
  text += heading;
  for (size_t i = 0; i < model.size(); ++i) text += explain_block(model[i], plan.blocks[i], shape);
  text += explain_memory(plan, explain_budget(plan, plain_peak_bytes(model, shape), shape.costs.room_bytes, budget));
  text += explain_price(plan, plan_step(model, shape, MemoryBudget{.bytes = kNoLimit}));
  const bool coded = std::any_of(model.begin(), model.end(), [](const auto& block) { return block.message_bytes > 0; });
  return text + "Sent by a rank for each logical batch: " + mebibytes(plan.traffic_bytes) +
         (coded ? ", weights in codes" : "") + "\n";
}

std::string explain_front(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  const auto front = plan_front(model, shape);
  const double plain = plain_peak_bytes(model, shape);
  char line[512];
  std::snprintf(line, sizeof line, "%12s %12s %12s %12s %12s  %s\n", "memory", "x plain", "time, s", "x fastest",
                "sent", "taken back");
  std::string text = "Plans by memory budget, as the planner counts them\n" + std::string(line);
  for (const StepPlan& plan : front) {
    std::snprintf(line, sizeof line, "%12s %12.3f %12.4g %12.3f %12s  %s\n", mebibytes(plan.peak_bytes()).c_str(),
                  plan.peak_bytes() / plain, plan.seconds(), plan.seconds() / front.front().seconds(),
                  mebibytes(plan.traffic_bytes).c_str(), plan.change.empty() ? "fastest" : plan.change.c_str());
    text += line;
  }
  return text;
}

}  // namespace ghostshard::dp
