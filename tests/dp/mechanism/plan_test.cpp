#include "dp/mechanism/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/clip_factors.h"
#include "tests/dp/mechanism/spoilt_plans.h"
#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

const SpoiltPlan kBad[] = {
    {"no_units", [](auto& c) { c.units = 0; }, "number of units must be >= 1, got 0"},
    {"batch_larger_than_n", [](auto& c) { c.expected_batch = 10001; },
     "at most the number of units (10000), got 10001"},
    {"no_batch", [](auto& c) { c.expected_batch = 0; }, "expected batch must be >= 1, got 0"},
    {"no_steps", [](auto& c) { c.steps = 0; }, "steps must be >= 1, got 0"},
    {"both_targets", [](auto& c) { c.noise_multiplier = accountant::NoiseMultiplier(1.0); }, "exactly one"},
    {"no_target", [](auto& c) { c.target_epsilon.reset(); }, "exactly one"},
    {"unreachable",
     [](auto& c) {
       c.target_epsilon = accountant::Epsilon(1e-9);
       c.delta = accountant::Delta(1e-300);
     },
     "epsilon"},
    {"unknown_accountant", [](auto& c) { c.accountant = "guess"; }, "guess"},
};
class BadPlan : public ::testing::TestWithParam<SpoiltPlan> {};

TEST_P(BadPlan, IsRefusedWithRuleAndValue) { expect_refused(GetParam(), good_config()); }
INSTANTIATE_TEST_SUITE_P(Plan, BadPlan, ::testing::ValuesIn(kBad), spoilt_part);

TEST(Plan, CalibratedNoiseKeepsTheRunWithinItsTarget) {
  const auto plan = dp::DpPlan::make(good_config());
  EXPECT_LE(plan.epsilon_after(100).upper, 4.0);
  EXPECT_GT(plan.epsilon_after(100).upper, 3.99) << "noise is wasted";
  EXPECT_LT(plan.epsilon_after(50).upper, plan.epsilon_after(100).upper);
}

TEST(Plan, AccountsTheSamplingRateAndNoiseThatRun) {
  const auto plan = dp::DpPlan::make(good_config());
  const auto event = std::get<accountant::PoissonGaussianEvent>(plan.event());
  EXPECT_EQ(event.q.value(), 500.0 / 10000.0);
  EXPECT_EQ(event.sigma.value(), plan.noise_multiplier().value());
  EXPECT_EQ(plan.divisor(), 500.0);
}

TEST(Plan, DefaultDeltaIsTheSmallerOfAMillionthAndNToTheMinusElevenTenths) {
  EXPECT_DOUBLE_EQ(dp::default_delta(1000).value(), 1e-6);
  EXPECT_DOUBLE_EQ(dp::default_delta(100'000'000).value(), std::pow(1e8, -1.1));
}

TEST(Plan, LedgerHeaderHoldsWhatAnAuditorNeeds) {
  const auto key = key_of(3);
  const auto header = dp::DpPlan::make(good_config()).ledger_header(key);
  for (const char* field : {"run_id", "adjacency", "unit_of_privacy", "units", "expected_batch", "sampling_rate",
                            "sampler", "noise_multiplier", "clip_norm", "divisor", "delta", "planned_steps"}) {
    EXPECT_TRUE(header.contains(field)) << field;
  }
  EXPECT_EQ(header.dump().find("0300000000"), std::string::npos) << "the key must not be in the ledger";
}

struct Factor {
  const char* name;
  double squared_norm;
  double most;
};
void PrintTo(const Factor& c, std::ostream* out) { *out << c.name; }
const Factor kFactors[] = {
    {"zero", 0.0, 1.0},          {"below", 0.5, 1.0},
    {"at_the_norm", 4.0, 1.0},   {"just_above", 4.0000001, 1.0},
    {"far_above", 1e30, 2e-15},  {"beyond_float", 1e300, 2e-150},
    {"infinite", INFINITY, 0.0}, {"nan", NAN, 0.0},
};
class ClipFactor : public ::testing::TestWithParam<Factor> {};
TEST_P(ClipFactor, NeverLetsAUnitExceedTheNorm) {
  const double n2 = GetParam().squared_norm;
  const auto factor = kernels::clip_factors(at::full({1}, n2, at::kDouble), 2.0).item<float>();
  EXPECT_GE(factor, 0.0F);
  EXPECT_LE(static_cast<double>(factor), GetParam().most);
  if (std::isfinite(n2)) {
    EXPECT_LE(static_cast<double>(factor) * std::sqrt(n2), 2.0);
    // Not much less either: shrunk by 2^-22 and rounded down once, unless below the smallest float.
    const double ideal = std::min(1.0, 2.0 / std::sqrt(n2));
    if (ideal > 1e-37) {
      EXPECT_GE(static_cast<double>(factor), ideal * (1 - 0x1p-21));
    }
  } else {
    EXPECT_EQ(factor, 0.0F);
  }
}
INSTANTIATE_TEST_SUITE_P(Clipper, ClipFactor, ::testing::ValuesIn(kFactors),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(RunKey, SubkeysDifferByPurposeStepAttemptAndRun) {
  const auto key = key_of(1);
  const auto base = key.derive(dp::Purpose::kNoise, {1, 0});
  EXPECT_EQ(base, key.derive(dp::Purpose::kNoise, {1, 0}));
  EXPECT_NE(base, key.derive(dp::Purpose::kCoins, {1, 0}));
  EXPECT_NE(base, key.derive(dp::Purpose::kNoise, {2, 0}));
  EXPECT_NE(base, key.derive(dp::Purpose::kNoise, {1, 1}));
  std::array<uint8_t, 32> bytes{};
  bytes[0] = 1;
  dp::RunId run{};
  run[15] = 1;
  EXPECT_NE(base, dp::RunKey::from_bytes(bytes, run).derive(dp::Purpose::kNoise, {1, 0}));
}

TEST(RunKey, GeneratedKeysDiffer) {
  const auto one = dp::RunKey::generate();
  const auto two = dp::RunKey::generate();
  EXPECT_NE(one.run_id(), two.run_id());
  EXPECT_NE(one.derive(dp::Purpose::kNoise, {0}), two.derive(dp::Purpose::kNoise, {0}));
}

// The run id is public: if the key were known, so would be the noise.
TEST(RunKey, GeneratedKeysAreNotKnownKeys) {
  const auto run = dp::RunKey::generate();
  for (const uint8_t byte : {0, 1, 255}) {
    std::array<uint8_t, 32> known{};
    known.fill(byte);
    EXPECT_NE(run.commitment(), dp::RunKey::from_bytes(known, run.run_id()).commitment()) << int{byte};
  }
}

// A parameter used twice is exact or refused by name, never under-counted.
TEST(Tape, RefusesAParameterUsedByTwoLinearLayersUnlessHeld) {
  const auto mesh = fsdp::Mesh::single();
  for (const auto way : {dp::RecordingChoice::kReplay, dp::RecordingChoice::kHold}) {
    SingleLinear layer(*mesh, 6, 6);
    layer.use.bias = nullptr;
    const auto plan = plan_without_noise(2, 0.5);
    auto clipper = plan.clipper(layer.model, {.recording = way});
    const auto segments = std::make_shared<kernels::Segments>(std::vector<int64_t>{0, 2, 4});
    at::manual_seed(1);
    layer.model.set_parameter(*layer.use.weight, at::randn({6, 6}));
    const fsdp::Lease lease(layer.model, 0);
    auto sum = clipper.begin();
    const auto tape = clipper.record(2);
    const at::Tensor y =
        dp::linear(layer.use, dp::linear(layer.use, at::randn({4, 6}), segments, tape), segments, tape);
    const auto run = [&] { y.sum().backward(); };
    if (way == dp::RecordingChoice::kHold) {
      EXPECT_NO_THROW(run());
    } else {
      try {
        run();
        FAIL() << "was accepted";
      } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find("'weight'"), std::string::npos) << error.what();
      }
    }
  }
}

struct RecordedTwice {
  std::unique_ptr<fsdp::Mesh> mesh = fsdp::Mesh::single();
  SingleLinear layer{*mesh, 6, 6};
  dp::DpPlan plan = plan_without_noise(2, 0.5);
  dp::Clipper clipper = plan.clipper(layer.model, {.recording = dp::RecordingChoice::kHold});
  fsdp::Lease lease{layer.model, 0};
  dp::SegmentsPtr segments = std::make_shared<kernels::Segments>(std::vector<int64_t>{0, 2, 4});

  at::Tensor loss(const std::shared_ptr<dp::Tape>& tape) {
    return dp::linear(layer.use, at::ones({4, 6}), segments, tape).sum();
  }
};

TEST(Tape, RefusesASecondBackwardWhoseTextsWouldCountAsTheSameUnits) {
  RecordedTwice world;
  const auto tape = world.clipper.record(2);
  world.loss(tape).backward();
  EXPECT_THROW(world.loss(tape).backward(), std::logic_error);
}

TEST(Clipper, RefusesASecondTapeWhileTheFirstIsOpenAndATapeAddedTwice) {
  RecordedTwice world;
  auto sum = world.clipper.begin();
  auto tape = world.clipper.record(2);
  EXPECT_THROW(world.clipper.record(2), std::logic_error) << "held gradients share one memory";
  world.loss(tape).backward();
  world.clipper.add(sum, tape);
  EXPECT_THROW(world.clipper.add(sum, tape), std::logic_error);
  EXPECT_THROW(world.loss(tape).backward(), std::logic_error);
  EXPECT_NO_THROW(world.clipper.record(2));
}

struct TwoPasses : ::testing::TestWithParam<bool> {
  std::unique_ptr<fsdp::Mesh> mesh = fsdp::Mesh::single();
  SingleLinear layer{*mesh, 6, 5};
  dp::DpPlan plan = plan_without_noise(2, 0.5);
  dp::Clipper clipper =
      plan.clipper(layer.model, {.recording = dp::RecordingChoice::kTwoPass, .streamed = {GetParam()}});
  dp::RunKey key = key_of(1);
  dp::GaussianMechanism mechanism = plan.mechanism(layer.model, key, nullptr);
  fsdp::Lease lease{layer.model, 0};
  dp::SegmentsPtr segments = std::make_shared<kernels::Segments>(std::vector<int64_t>{0, 2, 4});
  dp::ClippedSum sum = clipper.begin(mechanism, {0});
  std::shared_ptr<dp::Tape> tape = clipper.record(2);

  void pass(const at::Tensor& rows = at::ones({4, 6}), int uses = 1) {
    at::Tensor loss = at::zeros({});
    for (int use = 0; use < uses; ++use) loss = loss + dp::linear(layer.use, rows, segments, tape).sum();
    loss.backward();
  }
};

INSTANTIATE_TEST_SUITE_P(, TwoPasses, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "reduced_each" : "summed_up"; });

TEST_P(TwoPasses, AreBothNeeded) {
  pass();
  EXPECT_THROW(clipper.add(sum, tape), std::logic_error);
  EXPECT_TRUE(clipper.second_pass(sum, tape));
  EXPECT_THROW(clipper.second_pass(sum, tape), std::logic_error);
  EXPECT_THROW(clipper.add(sum, tape), std::logic_error) << "its rows have not come again";
  pass();
  EXPECT_THROW(pass(), std::logic_error) << "a third backward";
  clipper.add(sum, tape);
  EXPECT_NO_THROW(mechanism.release(std::move(sum), {0}));
}

TEST_P(TwoPasses, RefuseOtherRows) {
  pass();
  clipper.second_pass(sum, tape);
  EXPECT_THROW(pass(at::ones({4, 6}) * (1 + 0x1p-23)), std::logic_error);
}

TEST_P(TwoPasses, RefuseRowsThatComeMoreOften) {
  pass();
  clipper.second_pass(sum, tape);
  EXPECT_THROW(pass(at::ones({4, 6}), 2), std::logic_error);
}

// The norm of the rows that are awaited would be replaced by that of the gradients.
TEST_P(TwoPasses, RefuseGradientsBesideTheirRows) {
  tape->linear({.weight = layer.use.weight}, at::ones({4, 6}), at::ones({4, 5}), segments);
  EXPECT_THROW(tape->instantiated(*layer.use.weight, at::zeros({2, 5, 6})), std::exception);
}

TEST_P(TwoPasses, RefuseAMatrixUsedTwice) { EXPECT_ANY_THROW(pass(at::ones({4, 6}), 2)); }

TEST_P(TwoPasses, ThatFailLeaveASumNobodyCanUse) {
  pass();
  clipper.second_pass(sum, tape);
  EXPECT_THROW(pass(at::zeros({4, 6})), std::logic_error);
  tape.reset();
  tape = clipper.record(2);  // the same units once more would count twice
  pass();
  EXPECT_THROW(clipper.second_pass(sum, tape), std::logic_error);
  EXPECT_THROW(clipper.add(sum, tape), std::logic_error);
  EXPECT_THROW(mechanism.release(std::move(sum), {0}), std::logic_error);
}

TEST_P(TwoPasses, ThatFailLeaveNothingForTheNextBatch) {
  pass();
  clipper.second_pass(sum, tape);
  pass();  // its group may be on its way already
  { const dp::ClippedSum given_up = std::move(sum); }
  const auto released = [&](dp::Clipper& with, dp::GaussianMechanism& by, int64_t step) {
    dp::ClippedSum next = with.begin(by, {step});
    tape.reset();
    tape = with.record(2);
    pass();
    with.second_pass(next, tape);
    pass();
    with.add(next, tape);
    return by.release(std::move(next), {step}).slices().shard(*layer.model.groups()[0]).clone();
  };
  const at::Tensor after = released(clipper, mechanism, 1);
  dp::Clipper fresh = plan.clipper(layer.model, {.recording = dp::RecordingChoice::kTwoPass});
  dp::RunKey other_key = key_of(2);
  dp::GaussianMechanism other = plan.mechanism(layer.model, other_key, nullptr);
  EXPECT_TRUE(at::equal(after, released(fresh, other, 1)));
}

TEST(Clipper, HasNoSecondPassWhereOneIsEnough) {
  RecordedTwice world;
  auto sum = world.clipper.begin();
  const auto tape = world.clipper.record(2);
  world.loss(tape).backward();
  EXPECT_FALSE(world.clipper.second_pass(sum, tape));
  EXPECT_NO_THROW(world.clipper.add(sum, tape));
}

}  // namespace
}  // namespace ghostshard::tests
