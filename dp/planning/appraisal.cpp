#include "dp/planning/appraisal.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "dp/recording/head_tiles.h"

namespace ghostshard::dp {
namespace {

using fsdp::Residency;
using kernels::Recording;

constexpr std::array kWays = {Recording::kHold, Recording::kReplay, Recording::kTwoPass, Recording::kRecompute};

double rows_of(const StepShape& shape) {
  return static_cast<double>(shape.units) * static_cast<double>(shape.rows_per_unit);
}

// Of one product of the matrix with a microbatch's rows.
double product_flops(const PlannedMatrix& matrix, const StepShape& shape) {
  return 2 * rows_of(shape) * static_cast<double>(matrix.shape.inputs * matrix.shape.outputs);
}

const RecordPrice& price_of(const RecordPrices& prices, size_t block, size_t matrix, Recording way) {
  return prices[block][matrix].at(static_cast<size_t>(way));
}

// The part of a whole buffer that other ranks hold.
double others_part(const StepShape& shape) {
  return static_cast<double>(shape.shard_ranks - 1) / static_cast<double>(shape.shard_ranks);
}

// The block's activations. If its head is recomputed, a tile stands in the place of the logits.
double activations_of(const PlannedBlock& block, const BlockChoice& choice, const StepShape& shape) {
  double bytes = rows_of(shape) * block.activation_bytes;
  for (size_t m = 0; m < block.matrices.size() && shape.records; ++m) {
    if (choice.recording[m] != Recording::kRecompute) continue;
    const int64_t rows = shape.units * shape.rows_per_unit, outputs = block.matrices[m].shape.outputs;
    bytes -= kFloatBytes * rows_of(shape) *
             static_cast<double>(outputs - HeadTiles::width_of(rows, outputs, shape.head_tile_bytes));
  }
  return bytes;
}

double gathers(Residency residency, const StepShape& shape, bool two_pass) {
  return residency == Residency::kKeep ? 1.0 : (two_pass ? 4.0 : 2.0) * static_cast<double>(shape.microbatches);
}

// The two longest of some buffers.
class LongestTwo {
 public:
  void add(double bytes) {
    if (bytes > longest_) {
      second_ = std::exchange(longest_, bytes);
    } else {
      second_ = std::max(second_, bytes);
    }
  }
  double sum() const { return longest_ + second_; }

 private:
  double longest_ = 0, second_ = 0;
};

// Buffers of gathered weights: those that stay, and the two longest of those that share. If they travel in codes,
// also what the rank sends and the messages of two blocks under way; if they are rounded to travel, the rounded shards.
double gathered_bytes(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape) {
  double kept = 0, parameters = 0, sent = 0;
  LongestTwo shared, messages;
  for (size_t i = 0; i < model.size(); ++i) {
    const double whole = gathered_bytes_of(model[i], shape);
    parameters += static_cast<double>(model[i].parameters);
    sent += model[i].message_bytes / static_cast<double>(shape.shard_ranks);
    messages.add(model[i].message_bytes);
    plan.blocks[i].residency == Residency::kKeep ? void(kept += whole) : shared.add(whole);
  }
  const bool coded = messages.sum() > 0;
  const bool shard_itself = shape.value_bytes == shape.master_bytes && !coded;
  const double rounded = shard_itself ? 0 : parameters * static_cast<double>(shape.value_bytes);
  if (shape.shard_ranks == 1) return rounded;
  return kept + shared.sum() + (coded ? sent + messages.sum() : rounded / static_cast<double>(shape.shard_ranks));
}

// Master slices, optimizer state, reduced slices.
double state_bytes(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  double parameters = 0, trainable = 0;
  for (const PlannedBlock& block : model) {
    parameters += static_cast<double>(block.parameters);
    trainable += static_cast<double>(block.trainable);
  }
  const auto ranks = static_cast<double>(shape.shard_ranks);
  const double masters = static_cast<double>(shape.master_bytes) * parameters;
  return (masters + kFloatBytes * trainable * (shape.optimizer_values + 1)) / ranks;
}

// Gradient sums and everything that is sent.
void appraise_flow(StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape) {
  plan.sum_bytes = plan.traffic_bytes = 0;
  const bool two_pass = plan.two_pass();
  for (size_t i = 0; i < model.size(); ++i) {
    const BlockChoice& choice = plan.blocks[i];
    const double sum = kFloatBytes * static_cast<double>(model[i].trainable);
    const bool streamed = choice.gradients == GradientFlow::kStreamed;
    if (!streamed) plan.sum_bytes += sum;
    const double reductions = streamed ? static_cast<double>(shape.microbatches) : 1;
    plan.traffic_bytes +=
        others_part(shape) *
        (sent_bytes_of(model[i], shape) * gathers(choice.residency, shape, two_pass) + sum * reductions);
  }
}

// Forward and the inputs' gradients: two products of a matrix with the rows.
double plain_seconds(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  double products = 0;
  for (const PlannedBlock& block : model) {
    for (const PlannedMatrix& matrix : block.matrices) {
      products += product_flops(matrix, shape);
    }
  }
  return 2 * products * static_cast<double>(shape.microbatches) / shape.costs.rates.product_flops;
}

// Weight gradients, norms and records: time and FLOPs of all microbatches.
void appraise_records(StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                      const RecordPrices& prices) {
  plan.extra_seconds = plan.extra_flops = 0;
  if (!shape.records) return;
  const auto microbatches = static_cast<double>(shape.microbatches);
  const bool two_pass = plan.two_pass();
  for (size_t i = 0; i < model.size(); ++i) {
    for (size_t m = 0; m < model[i].matrices.size(); ++m) {
      const Recording way = plan.blocks[i].recording[m];
      const RecordPrice& price = price_of(prices, i, m, way);
      plan.extra_seconds += microbatches * price.seconds;
      plan.extra_flops += microbatches * price.flops;
      // The second pass goes through matrices that were recorded at once, too: forward and the inputs' gradient.
      if (two_pass && way != Recording::kTwoPass) {
        plan.extra_seconds +=
            microbatches * 2 * product_flops(model[i].matrices[m], shape) / shape.costs.rates.product_flops;
      }
    }
  }
}

bool has_head(const PlannedBlock& block) {
  return std::any_of(block.matrices.begin(), block.matrices.end(), [](const PlannedMatrix& m) { return m.head; });
}

// Of a block's gradients on their way: the message, unless it is the sum that is counted already, and what is received.
double message_bytes(const PlannedBlock& block, GradientFlow flow, const StepShape& shape) {
  const int copies = (flow == GradientFlow::kStreamed ? 1 : 0) + (shape.shard_ranks > 1 ? 1 : 0);
  return copies * kFloatBytes * static_cast<double>(block.trainable);
}

// After backward: while a block's gradients are on their way, so are those of the block before
// (fsdp/reduce_pipeline.h).
double most_under_way(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape) {
  double most = 0;
  for (const GradientFlow flow : {GradientFlow::kStreamed, GradientFlow::kAccumulate}) {
    double before = 0;
    for (size_t i = 0; i < model.size(); ++i) {
      if (plan.blocks[i].gradients != flow || model[i].trainable == 0) continue;
      const double own = message_bytes(model[i], flow, shape);
      most = std::max(most, before + own);
      before = own;
    }
  }
  return most;
}

// The most that one microbatch takes. Backward walks from the last block to the first: at each stand the activations
// that are left, all records so far, and the working memory of the block at hand; in a second pass also the sum that it
// is adding up, if that is streamed, and those of the block before that are on their way. Messages are long: what the
// layers gave back in small pieces has no room for them, so they stand beside the most that the layers took at once.
// The logits' place is of one piece, and serves.
double step_bytes(const StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
                  const RecordPrices& prices) {
  double activations = 0, recorded = 0, under_way = 0;
  double of_layers = 0, most_of_layers = 0, of_heads = 0;
  const bool sends_in_backward = plan.two_pass();
  for (size_t i = 0; i < model.size(); ++i) {
    const double own = activations_of(model[i], plan.blocks[i], shape);
    activations += own;
    of_layers += has_head(model[i]) ? 0 : own;
  }
  double most = activations;
  for (size_t i = model.size(); i-- > 0;) {
    const bool sends = sends_in_backward && plan.blocks[i].gradients == GradientFlow::kStreamed;
    const double sum = sends ? kFloatBytes * static_cast<double>(model[i].trainable) : 0;
    most = std::max(most, activations + recorded + under_way + sum + rows_of(shape) * model[i].working_bytes);
    most_of_layers = std::max(most_of_layers, of_layers);
    const double own = activations_of(model[i], plan.blocks[i], shape);
    double kept = 0;
    for (size_t m = 0; m < model[i].matrices.size() && shape.records; ++m) {
      kept += price_of(prices, i, m, plan.blocks[i].recording[m]).bytes;
    }
    activations -= own;
    recorded += kept;
    has_head(model[i]) ? void(of_heads += kept) : void(of_layers += kept - own);
    if (sends && model[i].trainable > 0) under_way = message_bytes(model[i], GradientFlow::kStreamed, shape);
    most = std::max(most, activations + recorded + under_way);
  }
  most_of_layers = std::max(most_of_layers, of_layers);
  return std::max(most, most_of_layers + of_heads + most_under_way(plan, model, shape));
}

}  // namespace

kernels::Segments segments_of(const StepShape& shape) {
  return kernels::Segments::even(shape.units, shape.rows_per_unit);
}

double norm_flops(Recording way, const PlannedMatrix& matrix, const StepShape& shape,
                  const kernels::Segments& segments) {
  return kernels::recording_cost(way, matrix.shape, segments, shape.costs.rates).flops - product_flops(matrix, shape);
}

double recorded_bytes(Recording way, const PlannedMatrix& planned, const StepShape& shape) {
  const kernels::LinearShape& matrix = planned.shape;
  if (way == Recording::kTwoPass) return 0;
  if (way == Recording::kHold) {
    return kFloatBytes * static_cast<double>(shape.units) * static_cast<double>(matrix.inputs * matrix.outputs);
  }
  // A recomputed head that is an embedding too keeps the logits' gradients of each unit's own ids.
  const int64_t columns = way == Recording::kReplay ? matrix.outputs : planned.used_twice ? shape.rows_per_unit : 0;
  return kFloatBytes * rows_of(shape) * static_cast<double>(matrix.inputs + columns);
}

double gathered_bytes_of(const PlannedBlock& block, const StepShape& shape) {
  return static_cast<double>(block.parameters) * static_cast<double>(shape.value_bytes);
}

double sent_bytes_of(const PlannedBlock& block, const StepShape& shape) {
  return block.message_bytes > 0 ? block.message_bytes : gathered_bytes_of(block, shape);
}

RecordPrices record_prices(const std::vector<PlannedBlock>& model, const StepShape& shape) {
  const kernels::Segments segments = segments_of(shape);
  RecordPrices prices(model.size());
  for (size_t i = 0; i < model.size(); ++i) {
    for (const PlannedMatrix& matrix : model[i].matrices) {
      auto& by_way = prices[i].emplace_back();
      for (const Recording way : kWays) {
        const auto cost = kernels::recording_cost(way, matrix.shape, segments, shape.costs.rates);
        by_way.at(static_cast<size_t>(way)) = {.seconds = cost.seconds,
                                               .flops = cost.flops - product_flops(matrix, shape),
                                               .bytes = recorded_bytes(way, matrix, shape)};
      }
    }
  }
  return prices;
}

void appraise(StepPlan& plan, const std::vector<PlannedBlock>& model, const StepShape& shape,
              const RecordPrices& prices) {
  plan.state_bytes = state_bytes(model, shape);
  plan.update_bytes = shape.update_bytes;
  plan.gathered_bytes = gathered_bytes(plan, model, shape);
  appraise_flow(plan, model, shape);
  appraise_records(plan, model, shape, prices);
  plan.extra_seconds += plan.traffic_bytes / shape.costs.link_bytes_per_second;
  plan.plain_seconds = plain_seconds(model, shape);
  plan.step_bytes = step_bytes(plan, model, shape, prices);
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

}  // namespace ghostshard::dp
