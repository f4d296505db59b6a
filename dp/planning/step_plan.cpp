#include "dp/planning/step_plan.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "dp/recording/head_tiles.h"

namespace ghostshard::dp {
namespace {

using fsdp::Residency;
using kernels::Recording;

constexpr double kFloatBytes = 4;
constexpr double kDefaultOverPlain = 1.05;

kernels::Segments segments_of(const StepShape& shape) {
  return kernels::Segments::even(shape.units, shape.rows_per_unit);
}

double rows_of(const StepShape& shape) {
  return static_cast<double>(shape.units) * static_cast<double>(shape.rows_per_unit);
}

// The part of a whole buffer that other ranks hold.
double others_part(const StepShape& shape) {
  return static_cast<double>(shape.shard_ranks - 1) / static_cast<double>(shape.shard_ranks);
}

double norm_flops(Recording way, const PlannedMatrix& matrix, const StepShape& shape,
                  const kernels::Segments& segments) {
  return kernels::recording_cost(way, matrix.shape, segments, shape.costs.rates).flops -
         2 * rows_of(shape) * static_cast<double>(matrix.shape.inputs * matrix.shape.outputs);
}

double recorded_bytes(Recording way, const PlannedMatrix& planned, const StepShape& shape) {
  const kernels::LinearShape& matrix = planned.shape;
  if (way == Recording::kTwoPass) return 0;
  if (way == Recording::kHold) {
    return kFloatBytes * static_cast<double>(shape.units) * static_cast<double>(matrix.inputs * matrix.outputs);
  }
  // What is kept of the logits' gradients of a head that is an embedding too: those of a unit's own ids.
  const int64_t columns = way == Recording::kReplay ? matrix.outputs : planned.used_twice ? shape.rows_per_unit : 0;
  return kFloatBytes * rows_of(shape) * static_cast<double>(matrix.inputs + columns);
}

// Of the block's activations what stands when its head is recomputed: a tile in the place of the logits.
double activations_of(const PlannedBlock& block, const BlockChoice& choice, const StepShape& shape) {
  double bytes = rows_of(shape) * block.activation_bytes;
  for (size_t m = 0; m < block.matrices.size() && shape.records; ++m) {
    if (choice.recording[m] != Recording::kRecompute) continue;
    const int64_t rows = shape.units * shape.rows_per_unit, outputs = block.matrices[m].shape.outputs;
    bytes -= kFloatBytes * rows_of(shape) * static_cast<double>(outputs - HeadTiles::width_of(rows, outputs));
  }
  return bytes;
}

double gathers(Residency residency, const StepShape& shape, bool two_pass) {
  return residency == Residency::kKeep ? 1.0 : (two_pass ? 4.0 : 2.0) * static_cast<double>(shape.microbatches);
}

double gathered_bytes_of(const PlannedBlock& block, const StepShape& shape) {
  return static_cast<double>(block.parameters) * static_cast<double>(shape.value_bytes);
}

// Fills in everything that follows from the choices.
void appraise(StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape) {
  const double rows = rows_of(shape), ranks = static_cast<double>(shape.shard_ranks);
  const double microbatches = static_cast<double>(shape.microbatches);
  const kernels::Segments segments = segments_of(shape);
  double parameters = 0, trainable = 0, longest_trainable = 0, longest_shared = 0, second_shared = 0;
  plan.gathered_bytes = plan.sum_bytes = plan.traffic_bytes = plan.extra_seconds = plan.extra_flops = 0;
  bool streams = false;
  const bool two_pass = plan.two_pass();
  for (size_t i = 0; i < model.size(); ++i) {
    const PlannedBlock& block = model[i];
    const BlockChoice& choice = plan.blocks[i];
    parameters += static_cast<double>(block.parameters);
    trainable += static_cast<double>(block.trainable);
    longest_trainable = std::max(longest_trainable, static_cast<double>(block.trainable));
    const double whole = gathered_bytes_of(block, shape);
    if (choice.residency == Residency::kKeep) {
      plan.gathered_bytes += whole;
    } else if (whole > longest_shared) {
      second_shared = std::exchange(longest_shared, whole);
    } else {
      second_shared = std::max(second_shared, whole);
    }
    const double sum = kFloatBytes * static_cast<double>(block.trainable);
    const bool each = choice.gradients == GradientFlow::kStreamed;
    streams = streams || (each && block.trainable > 0);
    if (!each) plan.sum_bytes += sum;
    plan.traffic_bytes +=
        others_part(shape) * (whole * gathers(choice.residency, shape, two_pass) + sum * (each ? microbatches : 1));
    for (size_t m = 0; m < block.matrices.size() && shape.records; ++m) {
      const Recording way = choice.recording[m];
      plan.extra_seconds +=
          microbatches * kernels::recording_cost(way, block.matrices[m].shape, segments, shape.costs.rates).seconds;
      plan.extra_flops += microbatches * norm_flops(way, block.matrices[m], shape, segments);
      // What is recorded at once is computed a second time with the rest.
      if (two_pass && way != Recording::kTwoPass) {
        plan.extra_seconds +=
            microbatches *
            (kernels::recording_cost(Recording::kTwoPass, block.matrices[m].shape, segments, shape.costs.rates)
                 .seconds -
             kernels::recording_cost(Recording::kReplay, block.matrices[m].shape, segments, shape.costs.rates).seconds);
      }
    }
  }
  if (shape.shard_ranks == 1)
    plan.gathered_bytes = shape.value_bytes == 4 ? 0 : parameters * 2;  // the shard itself
  else
    plan.gathered_bytes += longest_shared + second_shared;
  plan.extra_seconds += plan.traffic_bytes / shape.costs.link_bytes_per_second;
  // Master slices; optimizer, reduced slices.
  plan.state_bytes = kFloatBytes * (parameters + trainable * static_cast<double>(shape.optimizer_values + 1)) / ranks;

  // Backward walks from the last block to the first: what is left of the activations, what is recorded so far, and what
  // the block at hand works with.
  double activations = 0, recorded = 0;
  for (size_t i = 0; i < model.size(); ++i) activations += activations_of(model[i], plan.blocks[i], shape);
  plan.step_bytes = activations;
  for (size_t i = model.size(); i-- > 0;) {
    plan.step_bytes = std::max(plan.step_bytes, activations + recorded + rows * model[i].working_bytes);
    activations -= activations_of(model[i], plan.blocks[i], shape);
    for (size_t m = 0; m < model[i].matrices.size() && shape.records; ++m) {
      recorded += recorded_bytes(plan.blocks[i].recording[m], model[i].matrices[m], shape);
    }
    plan.step_bytes = std::max(plan.step_bytes, activations + recorded);
  }
  // After backward, while they travel: two messages received, and two sent where sums do not stand whole.
  const double messages = (shape.shard_ranks == 1 ? 0 : 2) + (streams ? 2 : 0);
  plan.step_bytes = std::max(plan.step_bytes, recorded + messages * kFloatBytes * longest_trainable);
}

StepPlan with_all(const std::vector<PlannedBlock>& model, Residency residency) {
  StepPlan plan;
  for (const PlannedBlock& block : model) {
    BlockChoice choice{.residency = block.always_gathered ? Residency::kKeep : residency};
    choice.recording.assign(block.matrices.size(), Recording::kReplay);
    plan.blocks.push_back(std::move(choice));
  }
  return plan;
}

std::string mebibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", bytes / (1 << 20));
  return text;
}

// One choice taken back.
struct Retreat {
  StepPlan plan;
  double saved;
  double seconds;
};

}  // namespace

bool StepPlan::two_pass() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlockChoice& choice) {
    return std::find(choice.recording.begin(), choice.recording.end(), Recording::kTwoPass) != choice.recording.end();
  });
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
  const kernels::Segments segments = segments_of(shape);
  StepPlan plan = with_all(model, shape.shard_ranks > 1 ? Residency::kKeep : Residency::kRegather);
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

  while (plan.peak_bytes() > budget) {
    std::optional<Retreat> best;
    // Some changes save nothing alone: the first two blocks gathered again need the shared buffers that the others will
    // use. So each kind is tried for one block, two, three, … of those that it could change.
    const auto consider = [&](const std::vector<size_t>& candidates, const char* reason, const auto& change) {
      StepPlan other = plan;
      for (const size_t block : candidates) {
        change(other.blocks[block]);
        other.blocks[block].reason = reason;
        appraise(other, model, shape);
        const double saved = plan.peak_bytes() - other.peak_bytes();
        const double seconds = std::max(0.0, other.extra_seconds - plan.extra_seconds);
        if (saved > 0 && (!best || seconds * best->saved < best->seconds * saved))
          best = Retreat{other, saved, seconds};
      }
    };
    std::vector<size_t> kept, accumulated, recording;
    size_t most_matrices = 0;
    for (size_t i = 0; i < model.size(); ++i) {
      const BlockChoice& now = plan.blocks[i];
      if (shape.shard_ranks > 1 && now.residency == Residency::kKeep && !model[i].always_gathered) kept.push_back(i);
      if (shape.shard_ranks > 1 && shape.records && now.gradients == GradientFlow::kAccumulate &&
          model[i].trainable > 0 && !plan.two_pass()) {
        accumulated.push_back(i);
      }
      if (!now.recording.empty()) recording.push_back(i);
      most_matrices = std::max(most_matrices, now.recording.size());
    }
    consider(kept, "gathered again: keeping it does not fit",
             [](BlockChoice& c) { c.residency = Residency::kRegather; });
    consider(accumulated, "reduced each microbatch: its whole sum does not fit",
             [](BlockChoice& c) { c.gradients = GradientFlow::kStreamed; });
    for (const auto& [from, to, reason] :
         {std::tuple{Recording::kHold, Recording::kReplay, "replayed: holding does not fit"},
          std::tuple{Recording::kReplay, Recording::kHold, "held: its rows would not fit"}}) {
      for (size_t m = 0; m < most_matrices && shape.records; ++m) {
        consider(recording, reason, [&, m](BlockChoice& c) {
          if (m < c.recording.size() && c.recording[m] == from) c.recording[m] = to;
        });
      }
      if (!shape.records) break;
      consider(recording, reason,
               [&](BlockChoice& c) { std::replace(c.recording.begin(), c.recording.end(), from, to); });
    }
    // At the price of two thirds of the head's own time: for a budget that somebody set.
    for (size_t m = 0; m < most_matrices && shape.records && budget_bytes; ++m) {
      std::vector<size_t> heads;
      for (const size_t i : recording) {
        if (m < model[i].matrices.size() && model[i].matrices[m].head &&
            plan.blocks[i].recording[m] != Recording::kTwoPass)
          heads.push_back(i);
      }
      consider(heads, "recomputed: its logits do not fit",
               [m](BlockChoice& c) { c.recording[m] = Recording::kRecompute; });
    }
    // Last, and only if all else has been taken back: it costs about a whole step.
    if (!best && shape.records && !plan.two_pass()) {
      StepPlan other = plan;
      for (size_t i = 0; i < model.size(); ++i) {
        BlockChoice& choice = other.blocks[i];
        choice.gradients = GradientFlow::kAccumulate;
        for (size_t m = 0; m < choice.recording.size(); ++m) {
          if (model[i].matrices[m].used_twice || choice.recording[m] == Recording::kRecompute) continue;
          choice.recording[m] = Recording::kTwoPass;
          choice.reason = "two passes: no record of it fits";
        }
      }
      appraise(other, model, shape);
      const double saved = plan.peak_bytes() - other.peak_bytes();
      if (saved > 0) best = Retreat{other, saved, std::max(0.0, other.extra_seconds - plan.extra_seconds)};
    }
    if (!best) {
      // Nobody asked for the default: where it is out of reach, the least possible is the answer.
      if (!budget_bytes) return plan;
      throw std::invalid_argument("the memory budget must be at least " + mebibytes(plan.peak_bytes()) +
                                  " for this model and microbatch on each rank, got " + mebibytes(budget) +
                                  "; a smaller --microbatch or --activation-checkpointing needs less");
    }
    plan = std::move(best->plan);
  }
  return plan;
}

Recording StepPlan::recording_of(const std::vector<PlannedBlock>& model, const std::string& parameter) const {
  for (size_t i = 0; i < model.size(); ++i) {
    for (size_t m = 0; m < model[i].matrices.size(); ++m) {
      if (model[i].matrices[m].parameter == parameter) return blocks[i].recording[m];
    }
  }
  throw std::out_of_range("the plan has no matrix '" + parameter + "'");
}

std::string explain(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                    std::optional<double> budget_bytes) {
  const kernels::Segments segments = segments_of(shape);
  std::string text = "Plan of one logical batch: " + std::to_string(shape.microbatches) + " microbatch(es) of " +
                     std::to_string(shape.units) + " unit(s) with about " + std::to_string(shape.rows_per_unit) +
                     " tokens each, " + std::to_string(shape.shard_ranks) + " shard rank(s)\n";
  char line[512];
  std::snprintf(line, sizeof line, "%-24s %-13s %-12s %-14s %12s %12s %12s %11s  %s\n", "block", "weights", "gradients",
                "matrices", "gathered", "sum", "recorded", "norm GFLOP", "why");
  text += line;
  for (size_t i = 0; i < model.size(); ++i) {
    const PlannedBlock& block = model[i];
    const BlockChoice& choice = plan.blocks[i];
    int64_t held = 0, again = 0, recomputed = 0;
    double recorded = 0, flops = 0;
    for (size_t m = 0; m < block.matrices.size(); ++m) {
      held += choice.recording[m] == Recording::kHold ? 1 : 0;
      again += choice.recording[m] == Recording::kTwoPass ? 1 : 0;
      recomputed += choice.recording[m] == Recording::kRecompute ? 1 : 0;
      recorded += recorded_bytes(choice.recording[m], block.matrices[m], shape);
      flops += norm_flops(choice.recording[m], block.matrices[m], shape, segments);
    }
    const auto count = static_cast<int64_t>(block.matrices.size());
    std::string ways = count == 0 || !shape.records ? "-" : "";
    for (const auto& [matrices, name] : {std::pair{held, "hold"},
                                         {count - held - again - recomputed, "replay"},
                                         {recomputed, "recompute"},
                                         {again, "two pass"}}) {
      if (matrices == 0 || ways == "-") continue;
      ways += (ways.empty() ? "" : ", ") + (matrices == count ? std::string() : std::to_string(matrices) + " ") + name;
    }
    const bool each = choice.gradients == GradientFlow::kStreamed;
    std::snprintf(line, sizeof line, "%-24s %-13s %-12s %-14s %12s %12s %12s %11.2f  %s\n", block.name.c_str(),
                  shape.shard_ranks == 1                 ? "in place"
                  : choice.residency == Residency::kKeep ? "keep"
                                                         : "gather again",
                  block.trainable == 0 ? "-"
                  : each               ? "streamed"
                                       : "accumulate",
                  ways.c_str(), mebibytes(gathered_bytes_of(block, shape)).c_str(),
                  mebibytes(each ? 0 : kFloatBytes * static_cast<double>(block.trainable)).c_str(),
                  mebibytes(shape.records ? recorded : 0).c_str(), shape.records ? flops / 1e9 : 0.0,
                  choice.reason.c_str());
    text += line;
  }
  const double default_budget = kDefaultOverPlain * plain_peak_bytes(model, shape);
  text += "Memory on a rank: weights, optimizer and messages " + mebibytes(plan.state_bytes) + ", gathered " +
          mebibytes(plan.gathered_bytes) + ", gradient sums " + mebibytes(plan.sum_bytes) + ", one microbatch " +
          mebibytes(plan.step_bytes) + "; together " + mebibytes(plan.peak_bytes()) + " (" +
          (budget_bytes ? "budget " + mebibytes(*budget_bytes)
                        : "default budget: 1.05 times the step without privacy, " + mebibytes(default_budget) +
                              (plan.peak_bytes() > default_budget ? ", out of reach: this is the least" : "")) +
          "), beside the program's own code and libraries\n";
  text += "Sent by a rank for each logical batch: " + mebibytes(plan.traffic_bytes) + "\n";
  return text;
}

}  // namespace ghostshard::dp
