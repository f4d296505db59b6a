// Muon on shards: beside a float64 twin on whole matrices, and the same bits on every mesh and from every checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/optimizer.h"
#include "fsdp/optimizer/matrix_exchange.h"
#include "fsdp/optimizer/orthogonalised.h"
#include "tests/fsdp/going_on.h"
#include "tests/fsdp/matrix_steps.h"
#include "tests/support/recording_mesh.h"

namespace ghostshard::fsdp {
namespace {

using tests::run_mesh;

// ---------------------------------------------------------------------------------------------------------------------
// Orthogonalised

// z(x) of the contract.
at::Tensor z_of(const at::Tensor& x) {
  const at::Tensor square = x.square();
  return 1.005026932199671 * x *
         (1 + 0.007160781732628843 / (square + 1.0859059552656642e-05) +
          0.1667085608339056 / (square + 0.006898374965843688));
}

// By singular values, in float64.
at::Tensor twin_of(const at::Tensor& matrix) {
  const auto [u, s, v] = at::linalg_svd(matrix.to(at::kDouble), /*full_matrices=*/false);
  const at::Tensor x = s / s.pow(4).sum(-1, true).pow(0.25);
  return u.mul(z_of(x).unsqueeze(-2)).matmul(v);
}

class Orthogonalised : public testing::TestWithParam<std::vector<int64_t>> {};
INSTANTIATE_TEST_SUITE_P(, Orthogonalised,
                         testing::Values(std::vector<int64_t>{64, 64}, std::vector<int64_t>{96, 40},
                                         std::vector<int64_t>{40, 96}, std::vector<int64_t>{1, 7},
                                         std::vector<int64_t>{3, 30, 50}, std::vector<int64_t>{2, 150, 400},
                                         std::vector<int64_t>{400, 150}, std::vector<int64_t>{2, 259, 261}),
                         [](const auto& test) {
                           std::string name;
                           for (const int64_t extent : test.param)
                             name += (name.empty() ? "" : "x") + std::to_string(extent);
                           return name;
                         });

TEST_P(Orthogonalised, InFloat32IsTheFloat64Twin) {
  const at::Tensor matrix = random(GetParam(), 1);
  // Long matrices: R's roundings, some 2^-24, count (s_1/s)² < 34 times at the most, half of that in a singular value.
  // Others: 2^-53, and the last product's 2^-24.
  EXPECT_LT(distance(orthogonalised(matrix), twin_of(matrix)), 5e-6);
}

TEST_P(Orthogonalised, InFloat64IsTheTwin) {
  const at::Tensor matrix = random(GetParam(), 1, at::kDouble);
  EXPECT_LT(distance(orthogonalised(matrix), twin_of(matrix)), 1e-10);
}

TEST(OrthogonalisedValues, AreTheNearestToOne) {
  // Chebyshev's alternation: an odd function of this degree whose error has as many extremes of one size, with signs in
  // turn, as it has free numbers and one more, 2·2 + 2, is the nearest there is. One value of 1 and many that do not
  // count beside it make the fourth-power norm 1.
  const at::Tensor x = at::logspace(std::log10(0.0014), 0, 40001, 10, at::dtype(at::kDouble));
  const at::Tensor error = z_of(x) - 1, size = error.abs().max();
  EXPECT_LT(size.item<double>(), 0.178623);
  std::vector<double> extremes;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const double here = error[i].item<double>();
    if (std::abs(here) < 0.999999 * size.item<double>()) continue;
    if (extremes.empty() || extremes.back() * here < 0) extremes.push_back(here);
  }
  EXPECT_EQ(extremes.size(), 6);
  const at::Tensor matrix = at::diag(at::tensor({1.0, 0.1, 0.0014, 0.001, 0.0}, at::kDouble));
  const at::Tensor found = orthogonalised(matrix).diagonal();
  EXPECT_LT((found - z_of(matrix.diagonal() / std::pow(1 + 1e-4, 0.25))).abs().max().item<double>(), 1e-6);
  EXPECT_LT(found[3].item<double>(), found[2].item<double>());
  EXPECT_EQ(found[4].item<double>(), 0);
}

TEST(OrthogonalisedValues, OfADeficientMatrixAreOneOrZero) {
  const at::Tensor matrix = random({200, 3}, 1).matmul(random({3, 600}, 2));
  const at::Tensor values = std::get<1>(at::linalg_svd(orthogonalised(matrix), false));
  EXPECT_LT((values.narrow(0, 0, 3) - 1).abs().max().item<float>(), 0.18);
  EXPECT_LT(values.narrow(0, 3, 197).abs().max().item<float>(), 0.01);  // some 2^-24 times the growth from zero, 620
}

TEST(OrthogonalisedSignal, LeavesSmallSingularValuesRightBesideIt) {
  // Two directions some sixty times as long as those of the noise.
  const at::Tensor signal = random({160, 2}, 2).matmul(random({2, 200}, 3)).mul_(10);
  const at::Tensor matrix = random({160, 200}, 1).add_(signal);
  EXPECT_LT(distance(orthogonalised(matrix), twin_of(matrix)), 1e-5);
}

TEST(OrthogonalisedScale, IsThatOfTheResult) {
  const at::Tensor matrix = random({3, 30, 50}, 1);
  EXPECT_LT(distance(orthogonalised(matrix, 7.5), orthogonalised(matrix).mul(7.5)), 1e-6);
}

TEST(OrthogonalisedZeros, AreZeros) {
  for (const int64_t columns : {6, 60}) {
    EXPECT_EQ(orthogonalised(at::zeros({4, columns})).abs().max().item<float>(), 0.0F);
  }
}

TEST(OrthogonalisedTinyNumbers, AreNoZeros) {
  const at::Tensor matrix = random({20, 50}, 1);
  EXPECT_LT(distance(orthogonalised(matrix * 1e-18), orthogonalised(matrix)), 1e-5);
}

TEST(OrthogonalisedNaN, IsNaN) {
  for (const int64_t columns : {6, 60}) {
    at::Tensor matrix = random({4, columns}, 1);
    matrix[1][2] = NAN;
    EXPECT_TRUE(orthogonalised(matrix).isnan().all().item<bool>());
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The rule

MuonOptions options() {
  MuonOptions muon{.momentum = 0.9, .weight_decay = 0.1, .adamw = {.weight_decay = 0.1}};
  muon.matrices = is_matrix;
  return muon;
}

Make muon(const MuonOptions& given = options()) {
  return [given](ShardedModel& model) { return make_muon(model, given); };
}

// A matrix by the contract's formulas, in float64.
at::Tensor twin(const MuonOptions& muon, const Parameter& parameter, int64_t pieces, int64_t steps) {
  at::Tensor w = start_of(parameter).to(at::kDouble), v = at::zeros_like(w);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor g = gradient_of(parameter, step).to(at::kDouble);
    v = muon.momentum * v + (1 - muon.momentum) * g;
    const at::Tensor u = muon.nesterov ? muon.momentum * v + (1 - muon.momentum) * g : v;
    std::vector<at::Tensor> moved;
    for (const at::Tensor& piece : u.chunk(pieces, 1)) {
      const auto longer = static_cast<double>(std::max(piece.size(0), piece.size(1)));
      moved.push_back(0.2 * std::sqrt(longer) * twin_of(piece));
    }
    w = (1 - kRate * muon.weight_decay) * w - kRate * at::cat(moved, 1);
  }
  return w;
}

TEST(Muon, FollowsTheFloat64TwinOnMatricesAndAdamWOnTheRest) {
  for (const bool nesterov : {true, false}) {
    MuonOptions given = options();
    given.nesterov = nesterov;
    const Weights found = weights_after({.shard = 2}, some_blocks(), muon(given), 5);
    const Weights adamw = weights_after(
        {.shard = 2}, some_blocks(), [](ShardedModel& m) { return make_adamw(m, {.weight_decay = 0.1}); }, 5);
    const auto mesh = Mesh::single();
    const ShardedModel model(*mesh, some_blocks());
    for (const auto& parameter : model.parameters()) {
      const std::string& name = parameter->name();
      if (name == "a.qkv" || name == "a.up" || name == "b.down") {
        const at::Tensor expected = twin(given, *parameter, name == "a.qkv" ? 3 : 1, 5);
        EXPECT_LT(distance(found.at(name), expected), 1e-5) << name;
        EXPECT_GT(distance(start_of(*parameter), expected), 1e-3) << "nothing moved";
      } else {
        EXPECT_TRUE(at::equal(found.at(name), adamw.at(name))) << name;
      }
    }
  }
}

TEST(Muon, TakesEachHeadByItselfIfItIsTold) {
  MuonOptions given = options();
  given.pieces = [](const Parameter& parameter) {
    return MuonOptions::Pieces{.extent = 1, .count = parameter.name() == "a.qkv" ? 3 * 4 : 1};
  };
  const Weights found = weights_after({.shard = 3}, some_blocks(), muon(given), 3);
  const auto mesh = Mesh::single();
  const ShardedModel model(*mesh, some_blocks());
  EXPECT_LT(distance(found.at("a.qkv"), twin(given, model.parameter("a.qkv"), 12, 3)), 1e-5);
}

TEST(Muon, StepsHaveTheRootMeanSquareOfAdamWs) {
  // 0.2·sqrt(max(p, d))·O with O's singular values between 0.82 and 1.18: a root mean square of 0.2·(0.82 … 1.18).
  MuonOptions given = options();
  given.weight_decay = 0;
  const Weights found = weights_after({}, some_blocks(), muon(given), 1);
  const auto mesh = Mesh::single();
  const ShardedModel model(*mesh, some_blocks());
  for (const char* name : {"a.qkv", "a.up", "b.down"}) {
    const at::Tensor step = (found.at(name) - start_of(model.parameter(name))) / kRate;
    const double rms = step.square().mean().sqrt().item<double>();
    EXPECT_GT(rms, 0.2 * 0.82) << name;
    EXPECT_LT(rms, 0.2 * 1.18) << name;
  }
}

TEST(Muon, EndsInTheSameBitsOnEveryMeshAndWithEveryGranule) {
  const Weights expected = weights_after({}, some_blocks(), muon(), 4);
  const std::optional<Granule> granules[] = {std::nullopt, Granule::elements(1), Granule::elements(256),
                                             Granule::whole()};
  for (const MeshShape shape : {MeshShape{.shard = 2}, MeshShape{.shard = 3}, MeshShape{.shard = 4},
                                MeshShape{.shard = 8}, MeshShape{.replicate = 2, .shard = 2}}) {
    for (const auto& granule : granules) {
      for (const auto& [name, value] : weights_after(shape, some_blocks(granule), muon(), 4)) {
        EXPECT_TRUE(at::equal(value, expected.at(name))) << name << " on " << shape.text();
      }
    }
  }
}

TEST(Muon, EndsInTheSameBitsIfSeveralMatricesTravelToOneOwner) {
  // Each block's only matrix is cut between ranks, so a message from one rank to another carries parts of several.
  std::vector<BlockSpec> blocks;
  for (const int64_t rows : {16, 20, 24, 28, 32, 36}) {
    const std::string name = "b" + std::to_string(rows);
    blocks.push_back({name, {{.name = name + ".w", .shape = {rows, 24}, .granule = Granule::rows()}}});
  }
  const Weights expected = weights_after({}, blocks, muon(), 3);
  for (const int64_t ranks : {2, 3}) {
    for (const auto& [name, value] : weights_after({.shard = ranks}, blocks, muon(), 3)) {
      EXPECT_TRUE(at::equal(value, expected.at(name))) << name << " on " << ranks << " ranks";
    }
  }
}

TEST(Muon, GoesOnToTheBitFromACheckpointOfAnyMesh) { expect_to_go_on_to_the_bit(muon(), "muon"); }

TEST(Muon, KeepsOneNumberForAMatrixAndTwoForTheRest) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = make_muon(model, options());
  EXPECT_EQ(optimizer->state_bytes(), 4 * ((24 * 72 + 24 * 40 + 40 * 24) + 2 * (72 + 24 + 50 * 24)));
  EXPECT_TRUE(optimizer->keeps("momentum", model.parameter("a.up")));
  EXPECT_FALSE(optimizer->keeps("first_moment", model.parameter("a.up")));
  EXPECT_TRUE(optimizer->keeps("second_moment", model.parameter("table")));
  EXPECT_FALSE(optimizer->keeps("momentum", model.parameter("a.frozen")));
}

struct WrongMuon {
  const char* name;
  std::function<void(MuonOptions&)> change;
  const char* sentence;
};
void PrintTo(const WrongMuon& c, std::ostream* out) { *out << c.name; }
class WrongMuons : public testing::TestWithParam<WrongMuon> {};
INSTANTIATE_TEST_SUITE_P(
    , WrongMuons,
    testing::Values(WrongMuon{"momentum_one", [](MuonOptions& o) { o.momentum = 1; }, "momentum must be"},
                    WrongMuon{"momentum_nan", [](MuonOptions& o) { o.momentum = NAN; }, "momentum must be"},
                    WrongMuon{"decay_negative", [](MuonOptions& o) { o.weight_decay = -1; }, "weight_decay must be"},
                    WrongMuon{"beta_one", [](MuonOptions& o) { o.adamw.beta1 = 1; }, "beta1 must be"},
                    WrongMuon{"pieces_with_a_remainder",
                              [](MuonOptions& o) {
                                o.pieces = [](const Parameter&) { return MuonOptions::Pieces{0, 5}; };
                              },
                              "parameter 'a.qkv': the pieces must divide one of its two extents, got 5 of extent 0"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(WrongMuons, AreRefused) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  MuonOptions given = options();
  GetParam().change(given);
  EXPECT_THAT([&] { make_muon(model, given); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr(GetParam().sentence)));
}

TEST(Muon, RefusesMatricesThatTheModelAxisCuts) {
  tests::RecordingMesh mesh({.model = 2}, 0);
  ShardedModel model(mesh, {{"a", {{.name = "w", .shape = {8, 6}, .split = {.extent = 0}}}}});
  EXPECT_THAT([&] { make_muon(model, {}); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("parameter 'w': muon needs whole")));
}

// ---------------------------------------------------------------------------------------------------------------------
// Owners and traffic

TEST(DealOut, GivesEveryRankAboutTheSameWork) {
  std::vector<double> costs;
  for (int layer = 0; layer < 12; ++layer) costs.insert(costs.end(), {3, 1, 4, 4});
  const std::vector<int64_t> owners = deal_out(costs, std::vector<int64_t>(costs.size(), -1), 8);
  std::vector<double> work(8, 0);
  for (size_t m = 0; m < costs.size(); ++m) work.at(static_cast<size_t>(owners[m])) += costs[m];
  // Longest processing time first is within 4/3 of the best (Graham 1969), and 12·12/8 = 18 is the mean.
  EXPECT_LE(*std::max_element(work.begin(), work.end()), 18 * 4.0 / 3);
  EXPECT_EQ(deal_out({5, 1, 1}, {0, -1, -1}, 2), (std::vector<int64_t>{0, 1, 1})) << "what is fixed counts as work";
}

TEST(Muon, HasEveryRankIssueTheSameCollectivesAndSendsEachElementTwice) {
  constexpr int64_t kRanks = 8, kLayers = 16;
  std::vector<BlockSpec> blocks;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = std::to_string(layer);
    blocks.push_back({name,
                      {{.name = name + ".in", .shape = {64, 256}},
                       {.name = name + ".bias", .shape = {256}},
                       {.name = name + ".out", .shape = {256, 64}}}});
  }
  std::vector<tests::RecordedCall> first;
  int64_t bytes = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    tests::RecordingMesh mesh({.shard = kRanks}, rank);
    ShardedModel model(mesh, blocks);
    const auto optimizer = make_muon(model, {});
    mesh.forget();
    optimizer->step(ShardBuffers(model), kRate);
    if (rank == 0) first = mesh.calls();
    EXPECT_EQ(mesh.calls(), first) << "rank " << rank << " would wait for the others for ever";
    for (const auto& call : mesh.calls()) bytes += call.bytes_sent;
  }
  ASSERT_FALSE(first.empty());
  const double elements = kLayers * 2 * 64 * 256;
  // Seven eighths of the elements go there and back, four bytes each. A round's slices are padded to its longest: half
  // of the ranks hold no part of a given matrix, so that is twice as much here.
  EXPECT_LT(static_cast<double>(bytes), 2.5 * 2 * 4 * elements * (kRanks - 1) / kRanks);
}

TEST(Muon, SendsNothingIfEveryMatrixIsWhole) {
  tests::RecordingMesh mesh({.shard = 4}, 1);
  std::vector<BlockSpec> blocks;
  for (int64_t layer = 0; layer < 4; ++layer) {
    blocks.push_back({"b" + std::to_string(layer), {}});
    for (int64_t m = 0; m < 4; ++m) {
      blocks.back().parameters.push_back(
          {.name = std::to_string(layer) + "." + std::to_string(m), .shape = {32, 32}, .granule = Granule::whole()});
    }
  }
  ShardedModel model(mesh, blocks);
  const auto optimizer = make_muon(model, {});
  mesh.forget();
  optimizer->step(ShardBuffers(model), kRate);
  EXPECT_TRUE(mesh.calls().empty());
}

}  // namespace
}  // namespace ghostshard::fsdp
