// docs/guarantee.md, facts 2 and 11: taking one unit out moves the un-noised sum by at most C(1+slack), even if tokens
// cancel.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

constexpr int64_t kInputs = 48;
constexpr int64_t kOutputs = 40;
constexpr int64_t kUnits = 5;
constexpr int64_t kTokens = 32;

using Choice = dp::RecordingChoice;
const CancellingCase kCases[] = {
    {"ordinary_hold", Choice::kHold, 1.0, 1.0},
    {"ordinary_replay", Choice::kReplay, 1.0, 1.0},
    {"cancelling_to_1e3_hold", Choice::kHold, 1.0, 1e-3},
    {"cancelling_to_1e3_replay", Choice::kReplay, 1.0, 1e-3},
    {"cancelling_to_1e6_replay", Choice::kReplay, 1.0, 1e-6},
    {"cancelling_exactly_replay", Choice::kReplay, 1.0, 0.0},
    {"huge_and_cancelling_exactly_hold", Choice::kHold, 1e6, 0.0},
    {"huge_and_cancelling_exactly_replay", Choice::kReplay, 1e6, 0.0},
    {"huge_and_cancelling_to_1e7_replay", Choice::kReplay, 1e6, 1e-7},
    {"ordinary_two_pass", Choice::kTwoPass, 1.0, 1.0},
    {"cancelling_to_1e3_two_pass", Choice::kTwoPass, 1.0, 1e-3},
    {"cancelling_exactly_two_pass", Choice::kTwoPass, 1.0, 0.0},
    {"huge_and_cancelling_to_1e7_two_pass", Choice::kTwoPass, 1e6, 1e-7},
    {"bfloat16_cancelling_two_pass", Choice::kTwoPass, 1.0, 0x1p-7, at::kBFloat16},
    {"tiny_replay", Choice::kReplay, 1e-12, 1.0},
    {"bfloat16_hold", Choice::kHold, 1.0, 1.0, at::kBFloat16},
    {"bfloat16_replay", Choice::kReplay, 1.0, 1.0, at::kBFloat16},
    {"bfloat16_cancelling_hold", Choice::kHold, 1.0, 0x1p-7, at::kBFloat16},
    {"bfloat16_cancelling_replay", Choice::kReplay, 1.0, 0x1p-7, at::kBFloat16},
    {"bfloat16_cancelling_exactly_replay", Choice::kReplay, 1.0, 0.0, at::kBFloat16},
    {"bfloat16_huge_and_cancelling_replay", Choice::kReplay, 1e6, 0x1p-7, at::kBFloat16},
    {"bfloat16_huge_and_cancelling_exactly_hold", Choice::kHold, 1e6, 0.0, at::kBFloat16},
};

class Sensitivity : public ::testing::TestWithParam<CancellingCase> {};

// Unit 2 is the adversary: its tokens come in pairs with equal inputs and opposite output gradients but for a residue.
// In 16 bits the residue lies in the gradients: factors that multiplied these would round the two apart.
std::pair<at::Tensor, at::Tensor> rows(const CancellingCase& c) {
  at::manual_seed(11);
  at::Tensor a = at::randn({kUnits * kTokens, kInputs});
  at::Tensor g = at::randn({kUnits * kTokens, kOutputs});
  const at::Tensor adversary_a = a.narrow(0, 2 * kTokens, kTokens);
  const at::Tensor adversary_g = g.narrow(0, 2 * kTokens, kTokens);
  adversary_a.mul_(c.magnitude);
  adversary_g.mul_(c.magnitude);
  if (c.residue < 1.0) {
    for (int64_t t = 0; t + 1 < kTokens; t += 2) {
      const bool in_gradients = c.dtype == at::kBFloat16;
      adversary_a[t + 1].copy_(adversary_a[t] * (in_gradients ? 1.0 : 1.0 + c.residue));
      adversary_g[t + 1].copy_(-adversary_g[t] * (in_gradients ? 1.0 + c.residue : 1.0));
    }
  }
  return {a.to(c.dtype), g.to(c.dtype)};
}

TEST_P(Sensitivity, OneUnitMovesTheSumByAtMostTheClipNorm) {
  const CancellingCase& c = GetParam();
  const double clip_norm = 1.0;
  const auto mesh = lone_mesh();
  SingleLinear layer(*mesh, kInputs, kOutputs, c.dtype);
  const auto plan = plan_without_noise(kUnits, clip_norm);
  const auto [a, g] = rows(c);
  std::vector<int64_t> all(kUnits + 1);
  for (int64_t u = 0; u <= kUnits; ++u) all[static_cast<size_t>(u)] = u * kTokens;
  const auto with = std::make_shared<kernels::Segments>(all);
  // Without the adversary: its segment is empty, the others' rows are the same.
  std::vector<int64_t> rest;
  std::vector<int64_t> kept;
  for (int64_t u = 0; u <= kUnits; ++u) rest.push_back(u * kTokens - (u > 2 ? kTokens : 0));
  for (int64_t r = 0; r < kUnits * kTokens; ++r) {
    if (r / kTokens != 2) kept.push_back(r);
  }
  const at::Tensor keep = at::tensor(at::ArrayRef<int64_t>(kept));
  const auto without = std::make_shared<kernels::Segments>(rest);

  const at::Tensor whole = released_sum(layer, plan, c.way, a, g, with);
  const at::Tensor less = released_sum(layer, plan, c.way, a.index_select(0, keep), g.index_select(0, keep), without);
  EXPECT_LE((whole - less).norm().item<double>(), clip_norm * (1 + dp::DpPlan::rounding_slack(kUnits)));
  EXPECT_TRUE(at::isfinite(whole).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Linear, Sensitivity, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

// The adversary among many: its rows are large and cancel exactly, before, between and after the others'.
class ManyOthers : public ::testing::TestWithParam<CancellingCase> {};

TEST_P(ManyOthers, KeepTheirSumWhenRowsCancel) {
  const CancellingCase& c = GetParam();
  constexpr int64_t kOthers = 200;
  const auto mesh = lone_mesh();
  const auto plan = plan_without_noise(kOthers + 1, 1.0);
  const auto sum = [&](int64_t place, double magnitude) {
    SingleLinear layer(*mesh, kInputs, kOutputs, c.dtype);
    layer.use.bias = nullptr;
    at::Tensor a = at::zeros({kOthers + 2, kInputs}), g = at::zeros({kOthers + 2, kOutputs});
    a.select(1, 0).fill_(1);
    g.select(1, 0).fill_(0.0625);
    for (const int64_t t : {0, 1}) {
      a[place + t][0] = magnitude;
      g[place + t][0] = (t == 0 ? 1 : -1) * magnitude;
    }
    std::vector<int64_t> offsets{0};
    for (int64_t u = 0; u <= kOthers; ++u) offsets.push_back(offsets.back() + (u == place ? 2 : 1));
    return released_sum(layer, plan, c.way, a.to(c.dtype), g.to(c.dtype), std::make_shared<kernels::Segments>(offsets));
  };
  const at::Tensor without = sum(0, 0);
  const bool emulated = !test_device().is_cpu();  // a thousand times slower: one case stands for all
  for (const double magnitude : emulated ? std::vector{1e3} : std::vector{300.0, 1e3, 2e3}) {
    for (const int64_t place : emulated ? std::vector<int64_t>{128} : std::vector<int64_t>{0, 63, 127, 128, kOthers}) {
      EXPECT_LE((sum(place, magnitude) - without).norm().item<double>(), 1 + dp::DpPlan::rounding_slack(kOthers + 1))
          << "magnitude " << magnitude << " at " << place;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Linear, ManyOthers,
                         ::testing::Values(CancellingCase{"hold", Choice::kHold, 0, 0},
                                           CancellingCase{"replay", Choice::kReplay, 0, 0},
                                           CancellingCase{"two_pass", Choice::kTwoPass, 0, 0},
                                           CancellingCase{"bfloat16_replay", Choice::kReplay, 0, 0, at::kBFloat16},
                                           CancellingCase{"bfloat16_two_pass", Choice::kTwoPass, 0, 0, at::kBFloat16}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(PerLayerClipping, BoundsTheUnitOverAllLayersTogether) {
  const auto mesh = lone_mesh();
  fsdp::ShardedModel model(*mesh, {{"a", {{"a", {3}}}}, {"b", {{"b", {2, 2}}}}, {"c", {{"c", {5}}}}});
  const double clip_norm = 2;
  const auto plan = dp::DpPlan::make({.units = 1,
                                      .expected_batch = 1,
                                      .steps = 1000,
                                      .clip_norm = accountant::ClipNorm(clip_norm),
                                      .clipping = dp::Clipping::kPerLayer,
                                      .noise_multiplier = accountant::NoiseMultiplier(1e-30)});
  const auto key = key_of(1);
  auto clipper = plan.clipper(model);
  auto mechanism = plan.mechanism(model, key, nullptr);
  auto sum = clipper.begin();
  const auto tape = clipper.record(1);
  for (const auto& parameter : model.parameters()) {
    auto extents = parameter->shape();
    extents.insert(extents.begin(), 1);
    tape->instantiated(*parameter, there(at::full(extents, 100.0F)));
  }
  clipper.add(sum, tape);
  const auto gradient = mechanism.release(std::move(sum), {0});
  double squared = 0;
  for (const auto& group : model.groups()) {
    squared += gradient.slices().shard(*group).cpu().to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_LE(std::sqrt(squared), clip_norm);
  EXPECT_GT(std::sqrt(squared), 0.999 * clip_norm);
}

struct NonFinite {
  const char* name;
  dp::RecordingChoice way;
  float value;
  bool in_gradient;
};
void PrintTo(const NonFinite& c, std::ostream* out) { *out << c.name; }
const NonFinite kNonFinite[] = {
    {"nan_input_hold", Choice::kHold, NAN, false},        {"nan_input_replay", Choice::kReplay, NAN, false},
    {"inf_gradient_hold", Choice::kHold, INFINITY, true}, {"inf_gradient_replay", Choice::kReplay, INFINITY, true},
    {"nan_input_two_pass", Choice::kTwoPass, NAN, false}, {"inf_gradient_two_pass", Choice::kTwoPass, INFINITY, true},
    {"overflow_two_pass", Choice::kTwoPass, 3e38F, true}, {"overflow_replay", Choice::kReplay, 3e38F, true},
    {"overflow_hold", Choice::kHold, 3e38F, true},
};
class NonFiniteUnit : public ::testing::TestWithParam<NonFinite> {};

TEST_P(NonFiniteUnit, ContributesExactlyZeroAndLeavesTheOthersAlone) {
  const NonFinite& c = GetParam();
  const auto mesh = lone_mesh();
  SingleLinear layer(*mesh, kInputs, kOutputs);
  const auto plan = plan_without_noise(2, 1.0);
  at::manual_seed(3);
  const at::Tensor a = at::randn({8, kInputs});
  const at::Tensor g = at::randn({8, kOutputs});
  const auto both = std::make_shared<kernels::Segments>(std::vector<int64_t>{0, 4, 8});
  const auto first = std::make_shared<kernels::Segments>(std::vector<int64_t>{0, 4, 4});
  const at::Tensor alone = released_sum(layer, plan, c.way, a.narrow(0, 0, 4), g.narrow(0, 0, 4), first);
  // 3e38 is finite; its products are not.
  (c.in_gradient ? g : a)[6].fill_(c.value);
  if (c.value == 3e38F) a[6].fill_(3e38F);
  const at::Tensor sum = released_sum(layer, plan, c.way, a, g, both);
  EXPECT_LE((sum - alone).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(at::isfinite(sum).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Linear, NonFiniteUnit, ::testing::ValuesIn(kNonFinite),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace ghostshard::tests
