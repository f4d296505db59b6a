// The plan of a logical batch: pure arithmetic, checked by hand if it is small.
#include "dp/planning/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dp/planning/appraisal.h"

namespace ghostshard::tests {
namespace {

using dp::GradientFlow;
using fsdp::Residency;
using kernels::Recording;

constexpr int64_t kWidth = 512;

// Embeddings, four blocks of one wide matrix each, an end.
std::vector<dp::PlannedBlock> model() {
  std::vector<dp::PlannedBlock> blocks = {
      {.name = "embeddings", .parameters = 8192 * kWidth, .trainable = 8192 * kWidth, .always_gathered = true}};
  for (int b = 0; b < 4; ++b) {
    blocks.push_back({.name = "block" + std::to_string(b),
                      .parameters = 12 * kWidth * kWidth,
                      .trainable = 12 * kWidth * kWidth,
                      .matrices = {{"m" + std::to_string(b), {.inputs = kWidth, .outputs = 12 * kWidth}}},
                      .activation_bytes = 17 * kWidth * 4.0,
                      .working_bytes = 9 * kWidth * 4.0});
  }
  blocks.push_back({.name = "end", .parameters = kWidth, .trainable = kWidth, .always_gathered = true});
  return blocks;
}

const dp::StepShape kShort{.units = 8, .rows_per_unit = 100, .microbatches = 4, .shard_ranks = 2};
const dp::StepShape kLong{.units = 2, .rows_per_unit = 512, .microbatches = 4, .shard_ranks = 2};
constexpr double kPlenty = 1e15;

dp::MemoryBudget of_bytes(double value) { return {.bytes = value}; }

TEST(StepPlan, HoldsLongUnitsAndReplaysShortOnes) {
  for (const auto& [shape, expected] : {std::pair{kShort, Recording::kReplay}, {kLong, Recording::kHold}}) {
    const auto plan = dp::plan_step(model(), shape, of_bytes(kPlenty));
    for (size_t b = 1; b <= 4; ++b) EXPECT_EQ(plan.blocks[b].recording.at(0), expected) << shape.rows_per_unit;
  }
}

TEST(StepPlan, CountsTheOptimizersStepIfItTakesMoreThanAMicrobatch) {
  dp::StepShape shape = kShort;
  const auto without = dp::plan_step(model(), shape, of_bytes(kPlenty));
  shape.update_bytes = without.step_bytes / 2;
  const auto small = dp::plan_step(model(), shape, of_bytes(kPlenty));
  EXPECT_EQ(small.peak_bytes(), without.peak_bytes());
  shape.update_bytes = without.step_bytes + (1 << 20);
  const auto large = dp::plan_step(model(), shape, of_bytes(kPlenty));
  EXPECT_EQ(large.peak_bytes(), without.peak_bytes() + (1 << 20));
  EXPECT_THAT(dp::explain(large, model(), shape, of_bytes(kPlenty)), testing::HasSubstr(" or the optimizer's step "));
  EXPECT_THROW(dp::plan_step(model(), shape, of_bytes(shape.update_bytes)), std::invalid_argument);
}

TEST(StepPlan, TrafficIsTwoModelsWherePlentyAndThreeForEachMicrobatchWhereScarce) {
  double bytes = 0;
  for (const auto& block : model()) bytes += 4.0 * static_cast<double>(block.parameters);
  const auto rich = dp::plan_step(model(), kShort, of_bytes(kPlenty));
  for (const auto& choice : rich.blocks) {
    EXPECT_EQ(choice.residency, Residency::kKeep);
    EXPECT_EQ(choice.gradients, GradientFlow::kAccumulate);
  }
  // Half of every buffer is the other rank's.
  EXPECT_DOUBLE_EQ(rich.traffic_bytes, 0.5 * 2 * bytes);

  dp::StepPlan least = rich;
  for (double budget = rich.peak_bytes();; budget = least.peak_bytes() - 1) {
    try {
      least = dp::plan_step(model(), kShort, of_bytes(budget));
    } catch (const std::invalid_argument&) {
      break;
    }
  }
  double expected = 0;
  for (size_t u = 0; u < model().size(); ++u) {
    const double block = 4.0 * static_cast<double>(model()[u].parameters);
    const bool kept = model()[u].always_gathered;
    EXPECT_EQ(least.blocks[u].residency, kept ? Residency::kKeep : Residency::kRegather) << u;
    const double reduced = least.blocks[u].gradients == GradientFlow::kStreamed ? 4 : 1;
    expected += 0.5 * block * ((kept ? 1 : 8) + reduced);
  }
  EXPECT_DOUBLE_EQ(least.traffic_bytes, expected);
  EXPECT_EQ(least.blocks[1].gradients, GradientFlow::kStreamed);
}

TEST(StepPlan, KeepsWithinEveryBudgetAndPaysForWhatItSaves) {
  for (const auto& shape : {kShort, kLong}) {
    const auto rich = dp::plan_step(model(), shape, of_bytes(kPlenty));
    double seconds = rich.extra_seconds;
    for (double budget = rich.peak_bytes(); budget > 0; budget *= 0.97) {
      dp::StepPlan plan;
      try {
        plan = dp::plan_step(model(), shape, of_bytes(budget));
      } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find("memory budget must be at least"), std::string::npos) << error.what();
        break;
      }
      EXPECT_LE(plan.peak_bytes(), budget);
      EXPECT_GE(plan.extra_seconds, rich.extra_seconds);
      seconds = plan.extra_seconds;
    }
    EXPECT_GT(seconds, rich.extra_seconds) << "less memory must have cost something";
  }
}

// Activation checkpointing: backward frees too little to make room for records.
std::vector<dp::PlannedBlock> checkpointed_model() {
  auto blocks = model();
  for (size_t b = 1; b <= 4; ++b) {
    blocks[b].activation_bytes = kWidth * 4.0;
    blocks[b].working_bytes = 26 * kWidth * 4.0;
  }
  return blocks;
}

TEST(StepPlan, WithoutABudgetTheFastestPlanIsTakenIfThereIsRoom) {
  for (const auto& shape : {kShort, kLong}) {
    const auto plan = dp::plan_step(model(), shape, {});
    EXPECT_DOUBLE_EQ(plan.seconds(), dp::plan_step(model(), shape, of_bytes(kPlenty)).seconds());
    EXPECT_LE(plan.peak_bytes(), 1.5 * dp::plain_peak_bytes(model(), shape));
  }
}

TEST(StepPlan, WithoutABudgetTheRoomOfTheMachineIsKept) {
  for (auto shape : {kShort, kLong}) {
    const auto front = dp::plan_front(model(), shape);
    ASSERT_GT(front.size(), 1U);
    shape.costs.room_bytes = front.back().peak_bytes();
    EXPECT_LE(dp::plan_step(model(), shape, {}).peak_bytes(), shape.costs.room_bytes);
    shape.costs.room_bytes = 1;
    const auto least = dp::plan_step(model(), shape, {});
    EXPECT_GT(least.peak_bytes(), 1) << "nobody asked for a limit";
    EXPECT_NE(dp::explain(least, model(), shape, {}).find("out of reach"), std::string::npos);
  }
}

// A head of many outputs: to replay it keeps the logits' gradients, which two passes save for a third of the time.
std::vector<dp::PlannedBlock> wide_headed_model() {
  auto blocks = model();
  constexpr int64_t kOutputs = 50257;
  blocks.back().matrices = {{.parameter = "head", .shape = {.inputs = kWidth, .outputs = kOutputs}, .head = true}};
  blocks.back().parameters = blocks.back().trainable = kOutputs * kWidth;
  blocks.back().activation_bytes = 4.0 * kOutputs;
  return blocks;
}

TEST(StepPlan, WithoutABudgetLittleMemoryIsNotBoughtDearly) {
  for (const int64_t units : {8, 64, 512, 4096}) {
    dp::StepShape shape = kShort;
    shape.units = units;
    for (const auto& blocks : {model(), checkpointed_model(), wide_headed_model()}) {
      const auto plan = dp::plan_step(blocks, shape, {});
      for (const auto& other : dp::plan_front(blocks, shape)) {
        if (other.peak_bytes() <= plan.peak_bytes()) continue;
        EXPECT_FALSE(plan.peak_bytes() > 0.8 * other.peak_bytes() && plan.seconds() > 1.05 * other.seconds())
            << units << " units: " << plan.seconds() / other.seconds() << " x the time for "
            << plan.peak_bytes() / other.peak_bytes() << " of the memory";
      }
    }
  }
}

TEST(StepPlan, ABudgetMayBeGivenInStepsWithoutPrivacy) {
  const double plain = dp::plain_peak_bytes(model(), kLong);
  const auto by_factor = dp::plan_step(model(), kLong, {.times_plain = 1.05});
  const auto by_bytes = dp::plan_step(model(), kLong, of_bytes(1.05 * plain));
  EXPECT_DOUBLE_EQ(by_factor.peak_bytes(), by_bytes.peak_bytes());
  EXPECT_LE(by_factor.peak_bytes(), 1.05 * plain);
}

TEST(StepPlan, TheFrontFallsInTimeAsMemoryGrows) {
  for (const auto& blocks : {model(), checkpointed_model(), wide_headed_model()}) {
    const auto front = dp::plan_front(blocks, kShort);
    for (size_t i = 1; i < front.size(); ++i) {
      EXPECT_LT(front[i].peak_bytes(), front[i - 1].peak_bytes());
      EXPECT_GT(front[i].seconds(), front[i - 1].seconds());
      EXPECT_FALSE(front[i].change.empty());
    }
    const std::string table = dp::explain_front(blocks, kShort);
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), static_cast<int64_t>(front.size()) + 2);
  }
}

TEST(StepPlan, TakesTwoPassesOnlyWhereNothingElseFits) {
  dp::StepShape shape = kShort;
  shape.shard_ranks = 1;
  shape.units = 64;
  const auto rich = dp::plan_step(checkpointed_model(), shape, of_bytes(kPlenty));
  dp::StepPlan one = rich, two = rich;
  for (double budget = rich.peak_bytes(); !two.two_pass(); budget = two.peak_bytes() - 1) {
    one = two;
    two = dp::plan_step(checkpointed_model(), shape, of_bytes(budget));
  }
  for (size_t b = 1; b <= 4; ++b) EXPECT_EQ(two.blocks[b].recording.at(0), Recording::kTwoPass);
  EXPECT_LE(two.peak_bytes(), dp::plain_peak_bytes(checkpointed_model(), shape) * 1.0001)
      << "records nothing beyond the plain step";
  // Forward, inputs' gradients and norms once more: a step has three products for each matrix, and two come again.
  EXPECT_GT(two.extra_seconds, 1.5 * one.extra_seconds);
  EXPECT_GT(two.extra_flops, 4 * 6400 * 48 * kWidth * kWidth);
}

TEST(StepPlan, ATiedHeadIsNeverRecordedInTwoPasses) {
  auto blocks = checkpointed_model();
  blocks.back().matrices = {{"tied", {.inputs = kWidth, .outputs = 8192}, /*used_twice=*/true}};
  dp::StepShape shape = kShort;
  shape.shard_ranks = 1;
  shape.units = 64;
  dp::StepPlan plan = dp::plan_step(blocks, shape, of_bytes(kPlenty));
  while (!plan.two_pass()) plan = dp::plan_step(blocks, shape, of_bytes(plan.peak_bytes() - 1));
  EXPECT_NE(plan.blocks.back().recording.at(0), Recording::kTwoPass);
}

// Each block's message is under way with the one before it, and no other: both are sent and received.
TEST(StepPlan, CountsTwoMessagesUnderWayAsBlocksFollowEachOther) {
  const dp::StepShape shape{.units = 1, .rows_per_unit = 8, .microbatches = 1, .shard_ranks = 2};
  const auto step_bytes = [&](const std::vector<int64_t>& sizes) {
    std::vector<dp::PlannedBlock> blocks;
    for (const int64_t size : sizes) blocks.push_back({.parameters = size, .trainable = size});
    auto plan = dp::with_all(blocks, Residency::kKeep);
    for (auto& choice : plan.blocks) choice.gradients = GradientFlow::kStreamed;
    dp::appraise(plan, blocks, shape, dp::record_prices(blocks, shape));
    return plan.step_bytes;
  };
  constexpr int64_t kLargest = 1'000'000, kSmall = 1'000;
  EXPECT_EQ(step_bytes({kLargest, kSmall, kLargest}), 2 * 4.0 * (kLargest + kSmall));
  EXPECT_EQ(step_bytes({kLargest, kLargest, kSmall}), 2 * 4.0 * (kLargest + kLargest));
}

// What layers gave back in pieces does not serve for messages; the logits' place does.
TEST(StepPlan, CountsMessagesBesideTheLayersAndInThePlaceOfTheLogits) {
  constexpr double kRowBytes = 4096, kOutputs = 100'000;
  constexpr int64_t kParameters = 10'000;
  const dp::StepShape shape{.units = 1, .rows_per_unit = 8, .microbatches = 1};
  const dp::PlannedBlock layer{.parameters = kParameters, .trainable = kParameters, .activation_bytes = kRowBytes};
  dp::PlannedBlock end = layer;
  end.matrices = {{.parameter = "head", .shape = {.inputs = 1, .outputs = 100'000}, .head = true}};
  end.activation_bytes = 4 * kOutputs;
  dp::StepShape two_ranks = shape;
  two_ranks.shard_ranks = 2;
  // Accumulated: the sums are counted elsewhere, so each message takes what is received. Hold: 1 x 100,000 of one unit.
  const double messages = 2 * 4.0 * kParameters, held = 4 * kOutputs;
  const auto fastest = dp::plan_front({layer, layer, end}, two_ranks).front();
  ASSERT_EQ(fastest.blocks.back().recording.at(0), Recording::kHold);
  const double logits_too = 8 * (2 * kRowBytes + 4 * kOutputs);
  EXPECT_EQ(fastest.step_bytes, std::max(logits_too, 8 * 2 * kRowBytes + held + messages));
  EXPECT_EQ(dp::plan_front({layer, layer}, two_ranks).front().step_bytes, 8 * 2 * kRowBytes + messages);
}

TEST(StepPlan, RecomputesAHeadWhoseLogitsDoNotFit) {
  auto blocks = model();
  constexpr int64_t kOutputs = 50304;
  blocks.back().matrices = {
      {.parameter = "head", .shape = {.inputs = kWidth, .outputs = kOutputs}, .used_twice = true, .head = true}};
  blocks.back().activation_bytes = 4.0 * kOutputs;
  const dp::StepShape shape{.units = 8, .rows_per_unit = 512, .microbatches = 4, .shard_ranks = 1};
  const auto rich = dp::plan_step(blocks, shape, of_bytes(kPlenty));
  EXPECT_NE(rich.blocks.back().recording.at(0), Recording::kRecompute);
  EXPECT_NE(dp::plan_step(blocks, shape, {}).blocks.back().recording.at(0), Recording::kRecompute)
      << "nobody asked for slower steps";
  auto plan = rich;
  while (plan.blocks.back().recording.at(0) != Recording::kRecompute) {
    plan = dp::plan_step(blocks, shape, of_bytes(plan.peak_bytes() - 1));
  }
  EXPECT_FALSE(plan.two_pass()) << "only the head is computed again";
  // The logits were most of the step, and 2048 of 50304 outputs are left of them (32 MiB over 4096 rows).
  const double logits = 4.0 * 4096 * kOutputs;
  EXPECT_LT(plan.step_bytes, rich.step_bytes - 0.9 * logits);
  EXPECT_GT(plan.step_bytes, rich.step_bytes - logits);
  // Two products of the three that a head costs come again, for each microbatch.
  EXPECT_GT(plan.extra_flops - rich.extra_flops, 4 * 4.0 * 4096 * kWidth * kOutputs * 0.99);
  EXPECT_THAT(dp::explain(plan, blocks, shape, of_bytes(plan.peak_bytes())), testing::HasSubstr("recompute"));
}

TEST(StepPlan, WeightsInCodesAreCountedOnTheirWayAndInTheBuffersThatHoldThem) {
  auto blocks = model();
  const auto plain = dp::plan_step(blocks, kShort, of_bytes(kPlenty));
  double codes = 0, longest = 0, second = 0, saved = 0;
  for (auto& block : blocks) {
    block.message_bytes = 1.015625 * static_cast<double>(block.parameters);
    saved += 4.0 * static_cast<double>(block.parameters) - block.message_bytes;
    codes += block.message_bytes;
    if (block.message_bytes > longest) {
      second = longest;
      longest = block.message_bytes;
    } else {
      second = std::max(second, block.message_bytes);
    }
  }
  const auto coded = dp::plan_step(blocks, kShort, of_bytes(kPlenty));
  EXPECT_DOUBLE_EQ(plain.traffic_bytes - coded.traffic_bytes, 0.5 * saved);  // every block is gathered once
  EXPECT_DOUBLE_EQ(coded.gathered_bytes - plain.gathered_bytes, codes / 2 + longest + second);
  EXPECT_THAT(dp::explain(coded, blocks, kShort, {}), testing::HasSubstr("weights in codes"));
  EXPECT_THAT(dp::explain(plain, model(), kShort, {}), testing::Not(testing::HasSubstr("weights in codes")));
  dp::StepShape alone = kShort;
  alone.shard_ranks = 1;
  double values = 0;
  for (const auto& block : blocks) values += 4.0 * static_cast<double>(block.parameters);
  EXPECT_DOUBLE_EQ(dp::plan_step(blocks, alone, of_bytes(kPlenty)).gathered_bytes, values) << "beside the shard";
}

TEST(StepPlan, OneRankGathersAndSendsNothing) {
  dp::StepShape shape = kShort;
  shape.shard_ranks = 1;
  const auto plan = dp::plan_step(model(), shape, of_bytes(kPlenty));
  EXPECT_EQ(plan.traffic_bytes, 0);
  EXPECT_EQ(plan.gathered_bytes, 0);
}

TEST(StepPlan, WithoutPrivacyNothingIsRecordedNorReducedEach) {
  dp::StepShape shape = kShort;
  shape.records = false;
  const auto plan = dp::plan_step(model(), shape, of_bytes(dp::plain_peak_bytes(model(), shape)));
  EXPECT_EQ(plan.extra_flops, 0);
  for (const auto& choice : plan.blocks) EXPECT_EQ(choice.gradients, GradientFlow::kAccumulate);
}

TEST(StepPlan, ExplainsEveryUnit) {
  const auto plan = dp::plan_step(model(), kLong, {});
  const std::string text = dp::explain(plan, model(), kLong, {});
  for (const auto& block : model()) EXPECT_NE(text.find(block.name), std::string::npos) << text;
  EXPECT_NE(text.find("no budget: at most 1.5 times"), std::string::npos) << text;
}

TEST(StepPlan, RefusesAnEmptyShape) {
  EXPECT_THROW(dp::plan_step(model(), {.units = 0, .rows_per_unit = 5}, {}), std::invalid_argument);
  EXPECT_THROW(dp::plan_step(model(), {.units = 1, .rows_per_unit = 0}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
