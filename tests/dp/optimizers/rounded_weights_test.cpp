// Master weights in bfloat16 under every optimizer: their bytes, what ranks see of them, the same bits for every number
// of ranks and from a checkpoint of another mesh, and steps that are those of float32 on average.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dp/gathering/weight_code.h"
#include "dp/optimizers/coded_adamw.h"
#include "dp/optimizers/weight_rounding.h"
#include "fsdp/checkpoint.h"
#include "fsdp/optimizer_groups.h"
#include "tests/dp/optimizers/private_steps.h"
#include "tests/fsdp/matrix_steps.h"
#include "tests/support/recording_mesh.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::tests {
namespace {

using fsdp::MeshShape;
using fsdp::ShardedModel;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kLong = 1000, kWide = 300;  // "w" is longer than a piece of an update
static_assert(kLong * kWide > ShardedModel::kPiece);
std::vector<fsdp::BlockSpec> blocks(int64_t rows = kLong, const fsdp::Granule& granule = dp::eight_bit_granule()) {
  return {{"a",
           {{.name = "w", .shape = {rows, kWide}, .granule = granule},
            {.name = "bias", .shape = {100}},
            {.name = "frozen", .shape = {4, 5}, .trainable = false}}},
          {"b", {{.name = "out", .shape = {61, 33}, .granule = granule}}}};
}

ShardedModel rounded_model(fsdp::Mesh& mesh, const std::vector<fsdp::BlockSpec>& specs,
                           std::shared_ptr<const fsdp::GatherCode> code = nullptr) {
  return ShardedModel(mesh, specs, at::kBFloat16, std::move(code), dp::keyed_weight_rounding());
}

void set_start(ShardedModel& model) {
  for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, fsdp::start_of(*parameter));
}

std::unique_ptr<fsdp::Optimizer> two_groups(ShardedModel& model) {
  const fsdp::Chosen w = [](const fsdp::Parameter& p) { return p.name() == "w"; };
  const fsdp::Chosen rest = [w](const fsdp::Parameter& p) { return !w(p); };
  std::vector<fsdp::OptimizerGroup> groups;
  groups.push_back({dp::make_coded_adamw(model, {}, w), w, 0.5});
  groups.push_back({fsdp::make_sgd(model, {.momentum = 0.9}, fsdp::StatesAt::kWithModel, rest), rest, 1.0});
  return fsdp::join_optimizers(model, std::move(groups));
}

// The long parameter for AdamW's, whose moments are cut in pieces too; the others are quicker without.
int64_t rows_for(const std::string& rule) { return rule.starts_with("adamw") ? kLong : 40; }

std::unique_ptr<fsdp::Optimizer> made(const std::string& rule, ShardedModel& model) {
  return rule == "groups" ? two_groups(model) : optimizer_of(rule, model);
}

class RoundedMasters : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, RoundedMasters,
                         testing::Values("sgd", "adamw", "adamw8bit", "adamw16bit", "muon", "soap", "groups"),
                         [](const auto& test) { return test.param; });

TEST_P(RoundedMasters, AreTheSameBitsForEveryNumberOfRanksAndFromACheckpoint) {
  const std::string& rule = GetParam();
  const auto steps_on = [&](const MeshShape& shape, const fsdp::Granule& granule, const std::filesystem::path& from,
                            const std::filesystem::path& to) {
    Weights result;
    std::mutex mutex;
    run_mesh(shape, [&](fsdp::Mesh& mesh) {
      ShardedModel model = rounded_model(mesh, blocks(rows_for(rule), granule));
      const auto optimizer = made(rule, model);
      from.empty() ? set_start(model) : fsdp::load_checkpoint(model, *optimizer, fsdp::list_checkpoints(from).at(0));
      if (from.empty()) fsdp::take_steps(model, *optimizer, 0, 2);
      if (!to.empty()) fsdp::write_checkpoint(model, *optimizer, to, 2, {});
      fsdp::take_steps(model, *optimizer, 2, 3);
      const Weights mine = whole_of(model);
      const std::lock_guard lock(mutex);
      result = mine;
    });
    return result;
  };
  const TemporaryFolder folder;
  const Weights expected = steps_on({}, dp::eight_bit_granule(), {}, folder.path());
  for (const auto& [name, value] : expected) {
    EXPECT_TRUE(at::equal(value, value.to(at::kBFloat16).to(at::kFloat))) << name << " is no bfloat16";
  }
  const auto same = [&](const Weights& found, const std::string& how) {
    for (const auto& [name, value] : found) EXPECT_TRUE(at::equal(value, expected.at(name))) << name << how;
  };
  same(steps_on({.shard = 2}, dp::eight_bit_granule(), {}, {}), " on two ranks");
  same(steps_on({.replicate = 2, .shard = 3}, fsdp::Granule::whole(), {}, {}), " with replicas");
  same(steps_on({.shard = 3}, dp::eight_bit_granule(), folder.path(), {}), " from a checkpoint");
}

TEST_P(RoundedMasters, TakeTheStepsOfFloat32OnAverage) {
  const auto mesh = fsdp::Mesh::single();
  const auto specs = blocks(rows_for(GetParam()));
  ShardedModel narrow = rounded_model(*mesh, specs), wide(*mesh, specs);
  set_start(narrow);
  for (const auto& parameter : wide.parameters()) {
    wide.set_parameter(*parameter, narrow.whole_parameter(narrow.parameter(parameter->name())));
  }
  const auto of_narrow = made(GetParam(), narrow), of_wide = made(GetParam(), wide);
  fsdp::take_steps(narrow, *of_narrow, 0, 1, 1e-3);
  fsdp::take_steps(wide, *of_wide, 0, 1, 1e-3);
  const at::Tensor expected = wide.whole_parameter(wide.parameter("w")),
                   off = narrow.whole_parameter(narrow.parameter("w")) - expected;
  // Each is a neighbour: at most 2^-7 of the value away. Their mean is nothing: five standard deviations of at most
  // half of that, for the values' root mean square.
  EXPECT_TRUE((off.abs() <= expected.abs() / 128 + 1e-30).all().item<bool>());
  const double root_mean_square = expected.square().mean().sqrt().item<double>();
  EXPECT_NEAR(off.mean().item<double>(), 0, 5 * root_mean_square / 256 / std::sqrt(static_cast<double>(off.numel())));
  EXPECT_GT(off.abs().mean().item<double>(), 1e-5) << "nothing was rounded";
}

TEST(RoundedMaster, TakeTwoBytesAParameterAndTravelAsTheyAre) {
  int64_t bytes = 0, wide_bytes = 0, elements = 0, padding = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    RecordingMesh mesh({.shard = 4}, rank);
    const ShardedModel model = rounded_model(mesh, blocks()), wide(mesh, blocks(), at::kBFloat16);
    for (const auto& group : model.groups()) bytes += static_cast<int64_t>(group->shard().storage().nbytes());
    for (const auto& group : wide.groups()) wide_bytes += static_cast<int64_t>(group->shard().storage().nbytes());
    elements = model.parameter_count();
    padding = 0;
    for (const auto& group : model.groups()) padding += group->plan().padding();
  }
  EXPECT_EQ(bytes, 2 * (elements + padding));
  EXPECT_EQ(wide_bytes, 4 * (elements + padding));
  const auto mesh = fsdp::Mesh::single();
  ShardedModel model = rounded_model(*mesh, blocks());
  set_start(model);
  const fsdp::Lease lease(model, 0);
  const fsdp::Parameter& w = model.parameter("w");
  EXPECT_EQ(w.value().data_ptr(), static_cast<char*>(w.group().shard().data_ptr()) + 2 * w.offset()) << "a copy";
}

// What travels in codes is what the stored weights give, on any mesh.
TEST(RoundedMaster, TravelInCodesToo) {
  const auto values_on = [](int64_t ranks) {
    at::Tensor value;
    std::mutex mutex;
    run_mesh({.shard = ranks}, [&](fsdp::Mesh& mesh) {
      ShardedModel model = rounded_model(mesh, blocks(), dp::weight_code(kernels::WeightCode::kInt8));
      set_start(model);
      const fsdp::Lease lease(model, 0);
      const at::Tensor mine = model.parameter("w").value().clone();
      const std::lock_guard lock(mutex);
      value = mine;
    });
    return value;
  };
  const at::Tensor alone = values_on(1);
  EXPECT_TRUE(at::equal(alone, values_on(3)));
  EXPECT_GT(alone.abs().max().item<double>(), 1);
}

// A parameter that the model axis cuts by columns: bits by its elements' places in the whole.
TEST(RoundedMaster, AreRoundedByTheirPlaceInTheWholeParameter) {
  const std::vector<fsdp::BlockSpec> cut = {
      {"a", {{.name = "w", .shape = {12, 24}, .split = {.extent = 1, .sections = 3}}}}};
  const auto weights_on = [&](const MeshShape& shape) {
    Weights result;
    std::mutex mutex;
    run_mesh(shape, [&](fsdp::Mesh& mesh) {
      ShardedModel model = rounded_model(mesh, cut);
      set_start(model);
      for (const auto& group : model.groups()) {
        for (const auto& range : group->owned()) {
          model.update_weights(*group, range, 1, [](const at::Tensor& values, int64_t) { values.add_(1e-3); });
        }
      }
      model.weights_changed();
      const Weights mine = whole_of(model);
      const std::lock_guard lock(mutex);
      result = mine;
    });
    return result.at("w");
  };
  const at::Tensor expected = weights_on({});
  EXPECT_TRUE(at::equal(weights_on({.shard = 2, .model = 2}), expected));
}

TEST(RoundedMaster, NeedTheComputeDtypeBfloat16) {
  const auto mesh = fsdp::Mesh::single();
  EXPECT_THAT([&] { ShardedModel(*mesh, blocks(), at::kFloat, nullptr, dp::keyed_weight_rounding()); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("master weights in bfloat16 need the compute dtype bfloat16, got Float")));
}

}  // namespace
}  // namespace ghostshard::tests
