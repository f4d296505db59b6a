// Shampoo and SOAP on shards: beside float64 twins tile by tile, the same bits on every mesh and from every checkpoint,
// and what a known error variance changes.
#include "fsdp/shampoo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/checkpoint.h"
#include "fsdp/optimizer/matrix_exchange.h"
#include "tests/fsdp/tile_twin.h"
#include "tests/support/recording_mesh.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::fsdp {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kVariance = 4e-5;  // beside gradients of variance 1e-4

class Tiled : public testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(, Tiled,
                         testing::Values(Rule{"shampoo", false, 0}, Rule{"shampoo_of_known_errors", false, kVariance},
                                         Rule{"soap", true, 0}, Rule{"soap_of_known_errors", true, kVariance}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(Tiled, FollowsTheFloat64TwinOnMatricesAndAdamWOnTheRest) {
  // A tile that is longer than wide has directions that its first gradient does not span, and which of them SOAP takes
  // for its basis is chance: all tiles are square for it.
  ShampooOptions given = tiled_options();
  if (GetParam().soap) given.side = 8;
  const Weights found = weights_after({.shard = 2}, some_blocks(), make_tiled(GetParam(), given), 5);
  const Weights adamw = weights_after(
      {.shard = 2}, some_blocks(), [](ShardedModel& m) { return make_adamw(m, tiled_options().adamw); }, 5);
  const auto mesh = Mesh::single();
  const ShardedModel model(*mesh, some_blocks());
  for (const auto& parameter : model.parameters()) {
    const std::string& name = parameter->name();
    if (parameter->trainable() && parameter->shape().size() == 2 && is_matrix(*parameter)) {
      const at::Tensor expected = twin(GetParam(), given, *parameter, 5);
      EXPECT_LT(distance(found.at(name), expected), 1e-5) << name;
      EXPECT_GT(distance(start_of(*parameter), expected), 1e-3) << "nothing moved";
    } else {
      EXPECT_TRUE(at::equal(found.at(name), adamw.at(name))) << name;
    }
  }
}

TEST_P(Tiled, EndsInTheSameBitsOnEveryMeshAndWithEveryGranule) {
  const Weights expected = weights_after({}, some_blocks(), make_tiled(GetParam()), 3);
  const std::pair<MeshShape, std::optional<Granule>> cuts[] = {{{.shard = 2}, std::nullopt},
                                                               {{.shard = 2}, Granule::elements(1)},
                                                               {{.shard = 3}, Granule::tiles(16)},
                                                               {{.shard = 3}, Granule::elements(100)},
                                                               {{.replicate = 2, .shard = 2}, std::nullopt},
                                                               {{.shard = 8}, std::nullopt}};
  for (const auto& [shape, granule] : cuts) {
    for (const auto& [name, value] : weights_after(shape, some_blocks(granule), make_tiled(GetParam()), 3)) {
      EXPECT_TRUE(at::equal(value, expected.at(name))) << name << " on " << shape.text();
    }
  }
}

TEST_P(Tiled, GoesOnToTheBitFromACheckpointOfAnyMesh) {
  const Weights expected = weights_after({.shard = 2}, some_blocks(), make_tiled(GetParam()), 5);
  for (const auto& [written_by, loaded_by] : {std::pair{MeshShape{.shard = 2}, MeshShape{.shard = 3}},
                                              std::pair{MeshShape{.replicate = 2, .shard = 2}, MeshShape{}}}) {
    const tests::TemporaryFolder folder;
    tests::run_mesh(written_by, [&](Mesh& mesh) {
      ShardedModel model(mesh, some_blocks());
      for (const auto& parameter : model.parameters()) model.set_parameter(*parameter, start_of(*parameter));
      const auto optimizer = make_tiled(GetParam())(model);
      take_steps(model, *optimizer, 0, 2);
      write_checkpoint(model, *optimizer, folder.path(), 2, {});
    });
    tests::run_mesh(loaded_by, [&](Mesh& mesh) {
      ShardedModel model(mesh, some_blocks(Granule::tiles(16)));
      const auto optimizer = make_tiled(GetParam())(model);
      load_checkpoint(model, *optimizer, list_checkpoints(folder.path()).at(0));
      take_steps(model, *optimizer, 2, 5);
      for (const auto& parameter : model.parameters()) {
        EXPECT_TRUE(at::equal(model.whole_parameter(*parameter), expected.at(parameter->name()))) << parameter->name();
      }
    });
  }
}

TEST_P(Tiled, RefusesACheckpointOfTilesOfAnotherSide) {
  const tests::TemporaryFolder folder;
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = make_tiled(GetParam())(model);
  take_steps(model, *optimizer, 0, 1);
  write_checkpoint(model, *optimizer, folder.path(), 1, {});
  ShampooOptions others = tiled_options();
  others.side = 8;
  const auto other = make_tiled(GetParam(), others)(model);
  EXPECT_THAT([&] { load_checkpoint(model, *other, list_checkpoints(folder.path()).at(0)); },
              ThrowsMessage<std::runtime_error>(HasSubstr("by_8/")));
}

TEST_P(Tiled, KeepsSixNumbersAnElementOfSquareTilesAndTwoForTheRest) {
  EXPECT_EQ(tiled_numbers(32, 48, 16), 6 * 32 * 48);
  // Two tiles [16, 16], three [16, 8] or [8, 16], one [8, 8].
  EXPECT_EQ(tiled_numbers(24, 40, 16), 2 * 6 * 256 + 3 * 2 * (128 + 256 + 64) + 6 * 64);
  int64_t bytes = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    tests::RecordingMesh mesh({.shard = 3}, rank);
    ShardedModel model(mesh, some_blocks());
    const auto optimizer = make_tiled(GetParam())(model);
    bytes += optimizer->state_bytes();
    EXPECT_TRUE(optimizer->keeps("second_moment", model.parameter("table")));
    EXPECT_FALSE(optimizer->keeps("second_moment", model.parameter("a.up")));
  }
  const int64_t tiles = tiled_numbers(24, 72, 16) + tiled_numbers(24, 40, 16) + tiled_numbers(40, 24, 16);
  EXPECT_EQ(bytes, 4 * (tiles + 2 * (72 + 24 + 50 * 24)));
}

struct WrongOption {
  const char* name;
  std::function<void(ShampooOptions&)> change;
  const char* sentence;
  bool of_both = true;
};
void PrintTo(const WrongOption& c, std::ostream* out) { *out << c.name; }
class WrongTiledOptions : public testing::TestWithParam<WrongOption> {};
INSTANTIATE_TEST_SUITE_P(
    , WrongTiledOptions,
    testing::Values(WrongOption{"no_side", [](auto& o) { o.side = 0; }, "the side of a tile must be at least 1, got 0"},
                    WrongOption{"never_refreshed", [](auto& o) { o.refresh_every = 0; }, "refresh_every must be"},
                    WrongOption{"factors_for_ever", [](auto& o) { o.factor_beta = 1; }, "factor_beta must be"},
                    WrongOption{"factor_beta_nan", [](auto& o) { o.factor_beta = NAN; }, "factor_beta must be"},
                    WrongOption{"beta_one", [](auto& o) { o.adamw.beta2 = 1; }, "beta2 must be"},
                    WrongOption{"decay_negative", [](auto& o) { o.weight_decay = -1; }, "weight_decay must be"},
                    WrongOption{"floor_above_one", [](auto& o) { o.error_floor = 1.5; }, "error_floor must be", false},
                    WrongOption{"floor_nan", [](auto& o) { o.error_floor = NAN; }, "error_floor must be", false}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(WrongTiledOptions, AreRefused) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  ShampooOptions given = tiled_options();
  GetParam().change(given);
  const auto refused = ThrowsMessage<std::invalid_argument>(HasSubstr(GetParam().sentence));
  EXPECT_THAT([&] { make_shampoo(model, given); }, refused);
  if (!GetParam().of_both) return;
  EXPECT_THAT([&] { make_soap(model, given); }, refused);
}

TEST_P(Tiled, RefusesMatricesThatTheModelAxisCutsAndAVarianceThatComesLate) {
  tests::RecordingMesh cut({.model = 2}, 0);
  ShardedModel parts(cut, {{"a", {{.name = "w", .shape = {8, 6}, .split = {.extent = 0}}}}});
  EXPECT_THAT([&] { make_tiled(GetParam())(parts); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("needs whole matrices, so the mesh must have no model")));
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = make_tiled(GetParam())(model);
  EXPECT_THROW(optimizer->set_error_variance(NAN), std::invalid_argument);
  take_steps(model, *optimizer, 0, 1);
  EXPECT_THROW(optimizer->set_error_variance(1), std::logic_error);
}

// ---------------------------------------------------------------------------------------------------------------------
// Known errors

// A matrix's movement in the last of `steps` steps of a rate of 1, and the mean of the gradients as AdamW averages
// them.
struct Movement {
  at::Tensor step, momentum, adam;
};
Movement movement(const std::function<at::Tensor()>& gradient, double variance, int64_t side, int64_t steps) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, {{"a", {{.name = "w", .shape = {side, side}}}}});
  ShampooOptions given;
  given.side = side;
  const auto optimizer = make_tiled(Rule{"", false, variance}, given)(model);
  ShardBuffers buffers(model);
  const FlatGroup& group = *model.groups().front();
  Movement found{.step = {}, .momentum = at::zeros({side, side}, at::kDouble), .adam = {}};
  at::Tensor second = at::zeros({side, side}, at::kDouble);
  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor g = gradient();
    buffers.shard(group).narrow(0, 0, side * side).copy_(g.reshape({-1}));
    found.momentum = 0.9 * found.momentum + 0.1 * g;
    second = 0.999 * second + 0.001 * g.square();
    if (step == steps) model.set_parameter(model.parameter("w"), at::zeros({side, side}));
    optimizer->step(buffers, 1.0);
  }
  found.momentum.div_(1 - std::pow(0.9, static_cast<double>(steps)));
  found.adam = found.momentum / (second / (1 - std::pow(0.999, static_cast<double>(steps)))).sqrt();
  found.step = -model.whole_parameter(model.parameter("w")).to(at::kDouble);
  return found;
}

double cosine(const at::Tensor& a, const at::Tensor& b) {
  return (a.mul(b).sum() / (a.norm() * b.norm())).item<double>();
}

TEST(ShampooOfErrorsAlone, IsMomentumWithTheNormOfAdamWsStep) {
  const auto generator = at::detail::createCPUGenerator(11);
  const auto errors = [&] { return at::randn({32, 32}, generator, at::kDouble); };
  for (const int64_t steps : {1, 21, 301}) {
    const Movement known = movement(errors, 1.0, 32, steps);
    // Both roots are multiples of the identity but for the few eigenvalues beyond the upper edge.
    EXPECT_GT(cosine(known.step, known.momentum), 0.99) << steps;
    EXPECT_NEAR((known.step.norm() / known.adam.norm()).item<double>(), 1, 1e-4) << steps;
  }
  // Unless it is told, it whitens what is white already: in step 1 it makes all singular values of the errors equal.
  const Movement untold = movement(errors, 0.0, 32, 1);
  EXPECT_LT(cosine(untold.step, untold.momentum), 0.9);
}

TEST(SoapOfKnownErrors, FindsADirectionThatItDoesNotFindUnlessItIsTold) {
  // A gradient of rank one, s·u·vᵀ, under errors of variance 1: L is 32·I with s² = 8 on top of it along u. Between two
  // directions orthogonal iteration goes by the ratio of their eigenvalues: 40/32 as it is, 40 − 26 to 32 − 26 without
  // the lower edge of 101 steps.
  const int64_t side = 32;
  const at::Tensor u = random({side, 1}, 1, at::kDouble), v = random({side, 1}, 2, at::kDouble);
  const at::Tensor signal = u.mm(v.t()).mul_(std::sqrt(8.0)).div_(u.norm() * v.norm());
  const auto found_of_u = [&](double told) {
    const auto mesh = Mesh::single();
    ShardedModel model(*mesh, {{"a", {{.name = "w", .shape = {side, side}}}}});
    ShampooOptions given;
    given.side = side;
    const auto optimizer = make_tiled(Rule{"", true, told}, given)(model);
    const auto generator = at::detail::createCPUGenerator(5);
    ShardBuffers gradient(model);
    for (int64_t step = 1; step <= 161; ++step) {
      const at::Tensor g = at::randn({side, side}, generator, at::kDouble).add_(signal);
      gradient.shard(*model.groups().front()).narrow(0, 0, side * side).copy_(g.reshape({-1}));
      optimizer->step(gradient, 1e-3);
    }
    at::Tensor basis;
    for (const StatePiece& piece : optimizer->pieces()) {
      if (piece.kind == "left_transform_by_32") basis = piece.values.view({side, side}).to(at::kDouble);
    }
    EXPECT_LT(distance(basis.t().mm(basis), at::eye(side, at::kDouble)), 1e-5);
    return std::abs(cosine(basis.select(1, 0), u.view({-1})));
  };
  const double told = found_of_u(1.0), untold = found_of_u(0.0);
  EXPECT_GT(told, 0.8);
  EXPECT_GT(told, untold + 0.1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Traffic and memory

TEST_P(Tiled, HasEveryRankIssueTheSameCollectivesAndNoneIfTilesAreWhole) {
  for (const bool whole : {false, true}) {
    std::vector<tests::RecordedCall> first;
    for (int64_t rank = 0; rank < 3; ++rank) {
      tests::RecordingMesh mesh({.shard = 3}, rank);
      ShardedModel model(mesh, some_blocks(whole ? std::optional(Granule::tiles(16)) : std::nullopt));
      const auto optimizer = make_tiled(GetParam())(model);
      mesh.forget();
      optimizer->step(ShardBuffers(model), kRate);
      if (rank == 0) first = mesh.calls();
      EXPECT_EQ(mesh.calls(), first) << "rank " << rank << " would wait for the others for ever";
    }
    EXPECT_EQ(first.empty(), whole);
  }
}

TEST(MatrixExchange, CountsItsBuffers) {
  const auto bytes = [](const Granule& granule) {
    tests::RecordingMesh mesh({.shard = 2}, 0);
    const ShardedModel model(mesh, {{"a", {{.name = "w", .shape = {8, 8}, .granule = granule}}}});
    return MatrixExchange(model, [](const Parameter&) { return true; }).buffer_bytes();
  };
  // The matrix and its result, 4·64 bytes each. If it is cut in two, its owner sends and receives 2·32 elements each
  // way, there and back.
  EXPECT_EQ(bytes(Granule::whole()), 2 * 4 * 64);
  EXPECT_EQ(bytes(Granule::rows()), 2 * 4 * 64 + 2 * 2 * 4 * (2 * 32));
}

}  // namespace
}  // namespace ghostshard::fsdp
