// docs/guarantee.md, fact 15: the count by which the clip norm adapts. One unit moves it by 1/2, its noise is its own,
// the clip norm that follows is the same on every rank, and a step's noise and charge are those of its own clip norm.
#include "dp/mechanism/clip_quantile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "kernels/gaussian_tensor.h"
#include "tests/dp/single_layer.h"
#include "tests/support/run_on_device.h"

namespace ghostshard::tests {
namespace {

using accountant::ClipNorm;
using accountant::NoiseMultiplier;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// Noise of this deviation is rounded to nothing: the count itself is seen.
constexpr double kSilent = 0.01;

double count_of(const std::vector<double>& norms, double clip_norm = 2.0) {
  return dp::centred_count(at::tensor(norms, at::kDouble).square(), ClipNorm(clip_norm)).item<double>();
}

TEST(ClipQuantile, OneUnitMovesTheCountByOneHalf) {
  const std::vector<double> others = {0.5, 1.0, 3.0, 1.9, 7.0};
  for (const double norm : {1e-30, 0.5, 2.0, 2.5, 1e30, kInfinity, kNan}) {
    std::vector<double> with = others;
    with.push_back(norm);
    const double moved = count_of(with) - count_of(others);
    EXPECT_EQ(moved, norm <= 2.0 ? 0.5 : -0.5) << norm;
    // What zero-out leaves in the record's place has no gradient, and is neither below nor above.
    with.back() = 0;
    EXPECT_EQ(count_of(with), count_of(others)) << norm;
  }
}

TEST(ClipQuantile, PutsTogetherWhatItSplits) {
  for (const double whole : {0.3, 0.68, 1.0, 25.0}) {
    for (const double count : {0.51 * whole, 0.6 * whole, whole, 25.6 * whole}) {
      const dp::ClipQuantile quantile{.count_noise = NoiseMultiplier(count)};
      const double gradients = quantile.gradient_noise(NoiseMultiplier(whole)).value();
      const double together = 1 / std::hypot(1 / gradients, 1 / (2 * count));
      EXPECT_GT(together, whole) << "less noise than is calibrated, of " << count;
      EXPECT_LT(together, whole * (1 + 1e-12));
    }
  }
  // The reference's example: at sigma 0.68 and B = 512 the count costs a hundredth of a percent.
  const auto usual = dp::ClipQuantile::around(ClipNorm(1), 512);
  EXPECT_NEAR(usual.gradient_noise(NoiseMultiplier(0.68)).value() / 0.68 - 1, 0.68 * 0.68 / (8 * 25.6 * 25.6), 2e-8);
}

TEST(ClipQuantile, MovesByTheShareBetweenItsLimits) {
  const dp::ClipQuantile quantile{.target = 0.3, .rate = 0.5, .least = ClipNorm(0.1), .most = ClipNorm(10)};
  const auto next = [&](double now, double share) { return quantile.next(ClipNorm(now), share).value(); };
  EXPECT_EQ(next(2, 0.3), 2);
  EXPECT_DOUBLE_EQ(next(2, 0.7), 2 * std::exp(-0.2)) << "too many are below: it falls";
  EXPECT_DOUBLE_EQ(next(2, -0.1), 2 * std::exp(0.2));
  EXPECT_EQ(next(2, 1e9), 0.1);
  EXPECT_EQ(next(2, -kInfinity), 10);
}

TEST(ClipQuantile, NoiseOfTheCountHasItsVarianceAndAKeyOfItsOwn) {
  constexpr double kDeviation = 3.0;
  constexpr int64_t kSteps = 20000;
  const auto key = key_of(7);
  double squares = 0, sum = 0, products = 0;
  std::set<double> fractions;
  for (int64_t step = 0; step < kSteps; ++step) {
    const double noise = dp::count_noise(key.derive(dp::Purpose::kCountNoise, {step, 1}), NoiseMultiplier(kDeviation));
    fractions.insert(noise - std::floor(noise));
    float gradients = 0;
    kernels::add_gaussian(key.derive(dp::Purpose::kNoise, {step, 1}), 0, 0, 1.0F, std::span(&gradients, 1));
    sum += noise / kDeviation;
    squares += noise * noise / (kDeviation * kDeviation);
    products += noise / kDeviation * static_cast<double>(gradients);
  }
  const auto n = static_cast<double>(kSteps);
  // Rounding to halves adds 1/48. Means of n: five standard deviations, as in noise_test.cpp.
  EXPECT_LT(std::abs(sum / n), 5 / std::sqrt(n));
  EXPECT_LT(std::abs(squares / n - 1 - 1 / (48 * kDeviation * kDeviation)), 5 * std::sqrt(2 / n));
  EXPECT_LT(std::abs(products / n), 5 / std::sqrt(n)) << "of the gradients' noise";
  EXPECT_THAT(fractions, testing::ElementsAre(0, 0.5)) << "digits tell which number was drawn";
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps of a layer whose units have the norms that a test chooses

struct Terms {
  double whole = 1e-6;
  double count_noise = kSilent;
  double start = 2.0;
  int64_t expected_batch = 16;
};

dp::DpPlan plan_of(const Terms& terms) {
  dp::DpConfig config{.units = 1000, .expected_batch = terms.expected_batch, .steps = 1000};
  config.clip_norm = ClipNorm(terms.start);
  config.clip_quantile = dp::ClipQuantile::around(config.clip_norm, 16);
  config.clip_quantile->count_noise = NoiseMultiplier(terms.count_noise);
  config.noise_multiplier = NoiseMultiplier(terms.whole);
  return dp::DpPlan::make(config);
}

struct Ways {
  bool streamed = false;
  dp::RecordingChoice recording = dp::RecordingChoice::kAutomatic;
};

// Steps on one rank; each unit's gradient is that of the bias, so its norm is the chosen number.
class Steps {
 public:
  Steps(fsdp::Mesh& mesh, dp::DpPlan planned, const Ways& ways = {})
      : layer(mesh, 1, 1),
        plan(std::move(planned)),
        clipper_(plan.clipper(layer.model, {.recording = ways.recording, .streamed = {ways.streamed}})),
        mechanism(plan.mechanism(layer.model, key_, nullptr)) {}

  // This rank's units, microbatch by microbatch. Returns the noised share.
  double take(const dp::StepId& step, const std::vector<std::vector<double>>& microbatches) {
    auto sum = clipper_.begin(mechanism, step);
    for (const auto& norms : microbatches) {
      const auto units = static_cast<int64_t>(norms.size());
      const auto segments = std::make_shared<kernels::Segments>(kernels::Segments::even(units, 1));
      const at::Tensor g = there(at::tensor(norms, at::kDouble).to(at::kFloat).unsqueeze(1));
      const fsdp::Lease lease(layer.model, 0);
      dp::add_microbatch(clipper_, sum, units, [&](const dp::RecorderPtr& recorder) {
        return dp::linear(layer.use, there(at::zeros({units, 1})), segments, recorder).mul(g).sum();
      });
    }
    const auto gradient = mechanism.release(std::move(sum), step);
    released = gradient.slices().shard(*layer.model.groups().front()).cpu().clone();
    return *mechanism.noised_share();
  }

  SingleLinear layer;
  dp::DpPlan plan;
  at::Tensor released;

 private:
  dp::RunKey key_ = key_of(9);
  dp::Clipper clipper_;

 public:
  dp::GaussianMechanism mechanism;
};

TEST(AdaptiveClipping, CountsEachUnitOnceOverTheExpectedBatch) {
  for (const bool streamed : {false, true}) {
    for (const auto recording : {dp::RecordingChoice::kAutomatic, dp::RecordingChoice::kTwoPass}) {
      const auto mesh = lone_mesh();
      Steps steps(*mesh, plan_of({}), {.streamed = streamed, .recording = recording});
      // Four below, two above, one without a gradient.
      EXPECT_EQ(steps.take({0}, {{0.1, 1.0, 3.0}, {1.9, 0.5, 50.0, 0.0}}), 0.5 + 1.0 / 16);
      EXPECT_DOUBLE_EQ(steps.plan.clip_norm().value(), 2 * std::exp(-0.2 / 16));
      EXPECT_EQ(steps.take({1}, {{5.0}}), 0.5 - 0.5 / 16) << "a true batch of one";
      EXPECT_EQ(steps.take({2}, {{1.0}}), 0.5 + 0.5 / 16) << "a true batch of one";
      EXPECT_EQ(steps.take({3}, {}), 0.5) << "an empty batch";
    }
  }
}

TEST(AdaptiveClipping, ReleasesTheNoisedCountAlone) {
  const auto mesh = lone_mesh();
  Steps steps(*mesh, plan_of({.whole = 0.5, .count_noise = 3.0}));
  const auto key = key_of(9);
  for (int64_t step = 0; step < 20; ++step) {
    const double noise = dp::count_noise(key.derive(dp::Purpose::kCountNoise, {step}), NoiseMultiplier(3.0));
    EXPECT_EQ(steps.take({step}, {{1e-3, 1e-3}}), 0.5 + (1 + noise) / 16);
  }
}

// The noise of a step belongs to the clip norm that bounded its units, not to the one that follows from it.
TEST(AdaptiveClipping, AddsTheNoiseOfItsOwnClipNorm) {
  const auto mesh = lone_mesh();
  Steps steps(*mesh, plan_of({.whole = 1.5, .count_noise = 4.0}));
  const auto key = key_of(9);
  std::set<double> clip_norms;
  for (int64_t step = 0; step < 8; ++step) {
    const double clip_norm = steps.plan.clip_norm().value();
    clip_norms.insert(clip_norm);
    steps.take({step}, {});
    at::Tensor z = at::zeros({1});  // of the bias, parameter 1
    kernels::add_gaussian(key.derive(dp::Purpose::kNoise, {step}), 1, 0, 1.0F, z);
    const double noise = steps.released[1].item<double>() * 16;
    const double expected = steps.plan.noise_multiplier().value() * clip_norm * z.item<double>();
    EXPECT_NEAR(noise, expected, 1e-6 * std::abs(expected)) << "step " << step;  // float32: 2^-24 a few times
  }
  EXPECT_GT(clip_norms.size(), 6U) << "the test shows nothing";
}

TEST(AdaptiveClipping, ARepeatedStepCountsWithNewNoise) {
  std::vector<double> shares;
  for (const dp::StepId& step : {dp::StepId{5}, dp::StepId{5, 1}, dp::StepId{6}}) {
    const auto mesh = lone_mesh();
    Steps steps(*mesh, plan_of({.whole = 0.5, .count_noise = 1000.0}));
    shares.push_back(steps.take(step, {}));
  }
  EXPECT_EQ(std::set<double>(shares.begin(), shares.end()).size(), 3U);
}

TEST(AdaptiveClipping, FollowsTheQuantile) {
  // Norms from e^-2 to e^2, evenly in their logarithm: their median is 1, their 0.9-quantile e^1.6.
  std::vector<double> norms;
  for (int64_t unit = 0; unit < 40; ++unit) norms.push_back(std::exp(-2 + 4 * (static_cast<double>(unit) + 0.5) / 40));
  for (const auto& [target, start, expected] :
       {std::tuple{0.5, 0.05, 1.0}, {0.5, 30.0, 1.0}, {0.9, 1.0, std::exp(1.6)}}) {
    const auto mesh = lone_mesh();
    dp::DpConfig config{.units = 1000, .expected_batch = 40, .steps = 1000, .clip_norm = ClipNorm(start)};
    config.clip_quantile = dp::ClipQuantile::around(config.clip_norm, 40);
    config.clip_quantile->target = target;
    config.noise_multiplier = NoiseMultiplier(1.0);
    Steps steps(*mesh, dp::DpPlan::make(config));
    double logarithms = 0;
    for (int64_t step = 0; step < 200; ++step) {
      steps.take({step}, {norms});
      if (step >= 100) logarithms += std::log(steps.plan.clip_norm().value()) / 100;
    }
    // The share's noise of 1/20 moves the logarithm by 0.2/20 a step and is pulled back at the rate 0.2·(share's slope
    // of 1/4): a deviation of 0.01/sqrt(2·0.05) = 0.03, less in a mean.
    EXPECT_NEAR(logarithms, std::log(expected), 0.1) << "quantile " << target << " from " << start;
  }
}

class AdaptiveClippingOnMesh : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, AdaptiveClippingOnMesh,
                         ::testing::Values("1x2x1", "1x4x1", "2x1x1", "2x2x1", "1x1x2", "1x2x2"),
                         [](const auto& param) { return "mesh_" + std::string(param.param); });

TEST_P(AdaptiveClippingOnMesh, EveryRankHasTheClipNormsOfOneRankBitForBit) {
  std::vector<double> norms;
  for (int64_t unit = 0; unit < 24; ++unit) norms.push_back(0.3 * static_cast<double>(unit));
  const auto clip_norms = [&](const fsdp::MeshShape& shape, bool streamed) {
    std::mutex mutex;
    std::vector<std::vector<double>> of_ranks;
    run_there(shape, [&](fsdp::Mesh& mesh) {
      Steps steps(mesh, plan_of({.whole = 1.0, .count_noise = 2.0}), {.streamed = streamed});
      std::vector<double> mine, found;
      for (size_t unit = 0; unit < norms.size(); ++unit) {
        if (static_cast<int64_t>(unit) % mesh.data_size() == mesh.data_rank()) mine.push_back(norms[unit]);
      }
      for (int64_t step = 0; step < 5; ++step) {
        found.push_back(steps.take({step}, {mine}));
        found.push_back(steps.plan.clip_norm().value());
      }
      const std::lock_guard lock(mutex);
      of_ranks.push_back(found);
    });
    return of_ranks;
  };
  const auto one = clip_norms({}, false).front();
  for (const bool streamed : {false, true}) {
    for (const auto& rank : clip_norms(fsdp::MeshShape::parse(GetParam()), streamed)) EXPECT_EQ(rank, one);
  }
}

}  // namespace
}  // namespace ghostshard::tests
