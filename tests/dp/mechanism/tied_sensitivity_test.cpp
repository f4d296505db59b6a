// docs/guarantee.md, facts 2 and 11, for a table that is embedding and head at once: taking one unit out moves the
// un-noised sum by at most C(1+slack), even if the two uses' contributions cancel, in float32 and in bfloat16. (A
// case's residue is relative to the embedding's part.)
#include <gtest/gtest.h>

#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

constexpr int64_t kVocabulary = 24;
constexpr int64_t kWidth = 40;
constexpr int64_t kUnits = 5;
constexpr int64_t kTokens = 16;

using Choice = dp::RecordingChoice;
const CancellingCase kCases[] = {
    {"float32_ordinary_replay", Choice::kReplay, 1.0, 1.0, at::kFloat},
    {"float32_cancelling_replay", Choice::kReplay, 1.0, 1e-5, at::kFloat},
    {"float32_cancelling_exactly_replay", Choice::kReplay, 1e4, 0.0, at::kFloat},
    {"bfloat16_ordinary_hold", Choice::kHold, 1.0, 1.0, at::kBFloat16},
    {"bfloat16_ordinary_replay", Choice::kReplay, 1.0, 1.0, at::kBFloat16},
    {"bfloat16_cancelling_hold", Choice::kHold, 1e3, 0x1p-7, at::kBFloat16},
    {"bfloat16_cancelling_replay", Choice::kReplay, 1e3, 0x1p-7, at::kBFloat16},
    {"bfloat16_cancelling_exactly_hold", Choice::kHold, 1e4, 0.0, at::kBFloat16},
    {"bfloat16_cancelling_exactly_replay", Choice::kReplay, 1e4, 0.0, at::kBFloat16},
};

struct Rows {
  at::Tensor ids;      // [N]
  at::Tensor e, h, b;  // the embedding's output gradients, the head's inputs and its logit gradients
};

// The last unit is the adversary: the head's part is minus the embedding's but for a residue.
Rows make_rows(const CancellingCase& c) {
  at::manual_seed(5);
  Rows r;
  const int64_t n = kUnits * kTokens;
  r.ids = at::randint(0, kVocabulary, {n}, at::kLong);
  r.e = at::randn({n, kWidth});
  r.h = at::randn({n, kWidth});
  r.b = at::randn({n, kVocabulary});
  if (c.residue < 1.0) {
    const int64_t first = (kUnits - 1) * kTokens;
    const auto of_adversary = [&](const at::Tensor& x) { return x.narrow(0, first, kTokens); };
    of_adversary(r.e).mul_(c.magnitude);
    of_adversary(r.h).copy_(of_adversary(r.e) * -(1.0 + c.residue));
    of_adversary(r.b).zero_().scatter_(1, of_adversary(r.ids).unsqueeze(1), 1.0);
  }
  for (at::Tensor* x : {&r.e, &r.h, &r.b}) *x = x->to(c.dtype);
  return r;
}

// Backward goes the other way: it reaches first what forward did last.
enum class Last { kHead, kLookup };

// The clipped sum over the first `units` units, one microbatch, as released.
at::Tensor released(const CancellingCase& c, const Rows& r, int64_t units, Last last = Last::kHead) {
  const auto mesh = lone_mesh();
  fsdp::ShardedModel model(*mesh, {{"unit", {{"table", {kVocabulary, kWidth}}}, fsdp::Residency::kKeep}}, c.dtype);
  const auto plan = plan_without_noise(kUnits, 1.0);
  const auto key = key_of(1);
  auto clipper = plan.clipper(model, {.recording = c.way});
  auto mechanism = plan.mechanism(model, key, nullptr);
  auto sum = clipper.begin();
  {
    const fsdp::Lease lease(model, 0);
    std::vector<int64_t> offsets;
    for (int64_t u = 0; u <= units; ++u) offsets.push_back(u * kTokens);
    const auto segments = std::make_shared<kernels::Segments>(offsets);
    const auto tape = clipper.record(units);
    const auto first = [&](const at::Tensor& x) { return x.narrow(0, 0, units * kTokens); };
    const fsdp::Parameter& table = model.parameter("table");
    at::Tensor looked_up, logits;
    for (const bool lookup : {last == Last::kHead, last == Last::kLookup}) {
      (lookup ? looked_up : logits) =
          lookup ? dp::embedding(table, there(first(r.ids).contiguous()), segments, tape)
                 : dp::linear({.weight = &table}, there(first(r.h).contiguous()), segments, tape);
    }
    EXPECT_EQ(looked_up.scalar_type(), c.dtype);
    EXPECT_EQ(logits.scalar_type(), c.dtype);
    (looked_up.mul(there(first(r.e))).sum() + logits.mul(there(first(r.b))).sum()).backward();
    clipper.add(sum, tape);
  }
  const auto gradient = mechanism.release(std::move(sum), {0});
  const fsdp::FlatGroup& group = *model.groups().front();
  return gradient.slices().shard(group).narrow(0, 0, kVocabulary * kWidth).cpu().to(at::kDouble) * plan.divisor();
}

class TiedSensitivity : public ::testing::TestWithParam<CancellingCase> {};

TEST_P(TiedSensitivity, OneUnitMovesTheSumByAtMostTheClipNorm) {
  const CancellingCase& c = GetParam();
  const Rows rows = make_rows(c);
  for (const Last last : {Last::kHead, Last::kLookup}) {
    const at::Tensor whole = released(c, rows, kUnits, last);
    const at::Tensor less = released(c, rows, kUnits - 1, last);
    EXPECT_LE((whole - less).norm().item<double>(), 1.0 + dp::DpPlan::rounding_slack(kUnits));
  }
}

class TiedSum : public ::testing::TestWithParam<CancellingCase> {};

TEST_P(TiedSum, IsThatOfTheRecordedRows) {
  // In float64 from the rows in their dtype: the difference is float32 rounding alone.
  const CancellingCase& c = GetParam();
  const Rows rows = make_rows(c);
  at::Tensor expected = at::zeros({kVocabulary, kWidth}, at::kDouble);
  for (int64_t u = 0; u < kUnits; ++u) {
    const auto of = [&](const at::Tensor& x) { return x.narrow(0, u * kTokens, kTokens).to(at::kDouble); };
    at::Tensor g = at::mm(of(rows.b).t(), of(rows.h));
    g.index_add_(0, rows.ids.narrow(0, u * kTokens, kTokens), of(rows.e));
    expected += g * std::min(1.0, 1.0 / g.norm().item<double>());
  }
  // Sums of at most 2·80 products: 160·2^-24 = 1e-5. By replay a norm is an upper bound, by gamma of the roundings of
  // both uses in one sum (16 rows each, which tensor cores may round 36 times; and 4 more) times the mass of the rows,
  // about five times the norm for each of the two.
  const bool tensor_cores = c.dtype == at::kBFloat16 && !test_device().is_cpu();
  const double of_bound = 2 * 5 * ((tensor_cores ? 36 : 16) + 16 + 4) * 0x1p-24;
  for (const Last last : {Last::kHead, Last::kLookup}) {
    const at::Tensor found = released(c, rows, kUnits, last).view_as(expected);
    // A table that is looked up first is replayed, unless a plan holds it.
    const double tolerance = 1e-5 + (c.way == Choice::kHold && last == Last::kHead ? 0 : of_bound);
    EXPECT_LT((found - expected).norm().item<double>(), tolerance * expected.norm().item<double>());
  }
}

const auto name_of = [](const auto& param) { return std::string(param.param.name); };
INSTANTIATE_TEST_SUITE_P(Tied, TiedSensitivity, ::testing::ValuesIn(kCases), name_of);

std::vector<CancellingCase> ordinary_cases() {  // a sum that cancels has no digits to compare
  std::vector<CancellingCase> cases;
  std::copy_if(std::begin(kCases), std::end(kCases), std::back_inserter(cases),
               [](const CancellingCase& c) { return c.residue == 1.0; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Tied, TiedSum, ::testing::ValuesIn(ordinary_cases()), name_of);

}  // namespace
}  // namespace ghostshard::tests
