// Muon that knows the variance of its gradients' errors: what it leaves out, and the bias that it takes out of the
// rest.
#include <gtest/gtest.h>

#include <ATen/ops/linalg_svd.h>

#include <cmath>

#include "fsdp/optimizer.h"
#include "fsdp/optimizer/above_errors.h"
#include "tests/fsdp/going_on.h"
#include "tests/fsdp/matrix_steps.h"

namespace ghostshard::fsdp {
namespace {

MuonOptions knowing(MuonErrors errors) {
  MuonOptions muon{.momentum = 0.9, .weight_decay = 0.1, .errors = errors, .adamw = {.weight_decay = 0.1}};
  muon.matrices = is_matrix;
  return muon;
}

constexpr double kVariance = 4e-6;  // of gradients of 1e-4: some of their directions lie below the edge
Make muon(const MuonOptions& given, double variance = kVariance) {
  return [given, variance](ShardedModel& model) {
    auto optimizer = make_muon(model, given);
    optimizer->set_error_variance(variance);
    return optimizer;
  };
}

// Errors of a variance of 1 in every element, and a signal of rank 3 with these singular values.
struct Noisy {
  at::Tensor signal, found;
};
Noisy noisy(int64_t p, int64_t d, const std::vector<double>& values, uint64_t seed) {
  const auto [u, s, v] = at::linalg_svd(random({p, d}, 77, at::kDouble), /*full_matrices=*/false);
  at::Tensor lengths = at::zeros_like(s);
  for (size_t i = 0; i < values.size(); ++i) lengths[static_cast<int64_t>(i)] = values[i];
  const at::Tensor signal = u.mul(lengths.unsqueeze(0)).matmul(v);
  return {.signal = u.mul(lengths.gt(0).to(at::kDouble).unsqueeze(0)).matmul(v),
          .found = signal + random({p, d}, seed, at::kDouble)};
}

TEST(OrthogonalisedAbove, ErrorsAloneIsNothing) {
  int64_t longer = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const at::Tensor errors = random({1, 30, 50}, seed).mul_(0.3);
    longer += orthogonalised_above(errors, 0.09, true).abs().max().item<double>() > 0 ? 1 : 0;
  }
  EXPECT_LE(longer, 50 / 8) << "the bound of Davidson and Szarek";
  EXPECT_GT(orthogonalised_above(random({1, 30, 50}, 1).mul_(0.3), 0.01, false).abs().max().item<double>(), 0)
      << "errors that are larger than it is told";
}

TEST(OrthogonalisedAbove, KeepsTheSignalsDirectionsAtLengthOne) {
  const Noisy matrix = noisy(30, 50, {60, 45, 40}, 5);
  const at::Tensor found = orthogonalised_above(matrix.found.to(at::kFloat).unsqueeze(0), 1, false)[0].to(at::kDouble);
  const at::Tensor values = std::get<1>(at::linalg_svd(found, false));
  EXPECT_LT((values.narrow(0, 0, 3) - 1).abs().max().item<double>(), 1e-5);
  EXPECT_LT(values.narrow(0, 3, 27).abs().max().item<double>(), 1e-5);
}

TEST(OrthogonalisedAbove, CorrectedHasNoBiasToTheLeadingOrder) {
  // The share of the true U·Vᵀ that is found on average. Uncorrected it falls short by e²·b, here 1 to 4 %; what is
  // left is of the next order, its square.
  for (const auto& [p, d] : {std::pair<int64_t, int64_t>{6, 20}, {20, 6}, {8, 8}}) {
    const std::vector<double> values = {20, 17, 15, 14, 13, 12};
    const at::Tensor plain = at::zeros({p, d}, at::kDouble), corrected = at::zeros({p, d}, at::kDouble);
    constexpr int kDraws = 400;
    for (uint64_t seed = 1; seed <= kDraws; ++seed) {
      const at::Tensor found = noisy(p, d, values, seed).found.unsqueeze(0);
      plain.add_(orthogonalised_above(found, 1, false)[0], 1.0 / kDraws);
      corrected.add_(orthogonalised_above(found, 1, true)[0], 1.0 / kDraws);
    }
    const at::Tensor truth = noisy(p, d, values, 1).signal;
    const auto short_of = [&](const at::Tensor& mean) { return 1 - mean.mul(truth).sum().item<double>() / 6; };
    EXPECT_GT(short_of(plain), 0.008) << p << " x " << d;
    EXPECT_LT(std::abs(short_of(corrected)), 0.2 * short_of(plain)) << p << " x " << d;
  }
}

// The whole rule beside a twin that knows each gradient's weight in what is orthogonalised.
TEST(MuonOfKnownErrors, KnowsTheVarianceOfWhatItOrthogonalises) {
  for (const bool nesterov : {true, false}) {
    MuonOptions given = knowing(MuonErrors::kCorrect);
    given.nesterov = nesterov;
    const auto mesh = Mesh::single();
    const Weights found = weights_after({.shard = 2}, some_blocks(), muon(given), 5);
    const ShardedModel model(*mesh, some_blocks());
    const Parameter& parameter = model.parameter("a.up");
    at::Tensor w = start_of(parameter).to(at::kDouble);
    std::vector<at::Tensor> gradients;
    int64_t dropped = 0;
    for (int64_t step = 0; step < 5; ++step) {
      gradients.push_back(gradient_of(parameter, step).to(at::kDouble));
      at::Tensor u = at::zeros_like(w);
      double squares = 0;
      for (int64_t i = 0; i <= step; ++i) {
        double weight = (1 - given.momentum) * std::pow(given.momentum, static_cast<double>(step - i));
        if (nesterov) weight = given.momentum * weight + (i == step ? 1 - given.momentum : 0);
        squares += weight * weight;
        u += weight * gradients[static_cast<size_t>(i)];
      }
      const at::Tensor moved = orthogonalised_above(u.unsqueeze(0), kVariance * squares, true)[0];
      dropped += 24 - std::get<1>(at::linalg_svd(moved, false)).gt(0.5).sum().item<int64_t>();
      w = (1 - kRate * given.weight_decay) * w - kRate * 0.2 * std::sqrt(40.0) * moved;
    }
    EXPECT_LT(distance(found.at("a.up"), w), 1e-5) << nesterov;
    EXPECT_GT(dropped, 5);
    EXPECT_LT(dropped, 5 * 24);
  }
}

TEST(MuonOfKnownErrors, IsMuonIfNoneAreKnown) {
  const Weights expected = weights_after({}, some_blocks(), muon(knowing(MuonErrors::kKeep)), 2);
  for (const auto& [name, value] : weights_after({}, some_blocks(), muon(knowing(MuonErrors::kDrop), 0), 2)) {
    EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
  }
}

TEST(MuonOfKnownErrors, GoesOnToTheBitFromACheckpointOfAnyMesh) {
  expect_to_go_on_to_the_bit(muon(knowing(MuonErrors::kCorrect)), "muon_corrected");
}

TEST(MuonOfKnownErrors, RefusesAVarianceThatComesLate) {
  const auto mesh = Mesh::single();
  ShardedModel model(*mesh, some_blocks());
  const auto optimizer = make_muon(model, knowing(MuonErrors::kDrop));
  take_steps(model, *optimizer, 0, 1);
  EXPECT_THROW(optimizer->set_error_variance(1), std::logic_error);
  EXPECT_THROW(optimizer->set_error_variance(-1), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::fsdp
