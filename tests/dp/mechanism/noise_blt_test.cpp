// Noise from buffers: its values against a slow twin and against whole matrices, where a chain begins, and what each
// step is charged.
#include "dp/mechanism/noise_blt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/gaussian_tensor.h"
#include "tests/dp/mechanism/released_noise.h"

namespace ghostshard::tests {
namespace {

// As released_noise() has it: 100 units in batches of 4, 10 steps.
const dp::NoiseBlt kBlt{.outputs = {0.3F, 0.11F}, .decays = {0.5F, 0.97F}, .separation = 25, .steps = 10};
constexpr uint8_t kKey = 8;

float rounded_up(double value) {
  const auto rounded = static_cast<float>(value);
  return static_cast<double>(rounded) < value ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
                                              : rounded;
}

at::Tensor fresh_noise(const dp::StepId& step, uint32_t parameter, int64_t count) {
  const auto key = key_of(kKey);
  at::Tensor z = at::zeros({count});
  kernels::add_gaussian(key.derive(dp::Purpose::kNoise, step), parameter, 0,
                        rounded_up(kBlt.rows().norm() * static_cast<double>(rounded_up(kSigma * kClip))), z);
  return z;
}

// The noise of the last of the steps, which are one chain: by the definition, element by element. volatile: each
// product is rounded before it goes into a sum.
at::Tensor slow_noise(const std::vector<dp::StepId>& chain, uint32_t parameter, int64_t count) {
  std::vector<std::vector<float>> buffers(kBlt.outputs.size(), std::vector<float>(static_cast<size_t>(count), 0));
  at::Tensor noise;
  for (const auto& step : chain) {
    noise = fresh_noise(step, parameter, count);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      float& x = noise.data_ptr<float>()[i];
      for (size_t j = 0; j < buffers.size(); ++j) {
        const volatile float product = buffers[j][i] * kBlt.outputs[j];
        const volatile float difference = x - product;
        x = difference;
      }
      for (size_t j = 0; j < buffers.size(); ++j) {
        const volatile float product = buffers[j][i] * kBlt.decays[j];
        const volatile float sum = product + x;
        buffers[j][i] = sum;
      }
    }
  }
  return noise;
}

std::map<std::string, at::Tensor> released(const std::vector<dp::StepId>& steps, const fsdp::MeshShape& shape = {},
                                           bool streamed = false) {
  return released_noise(shape, kKey, steps, streamed, streamed ? 2 : 0, {.blt = kBlt});
}

// Parameters' ids: their places in kUnits.
void expect_noise_of(const std::vector<dp::StepId>& chain, const std::map<std::string, at::Tensor>& found,
                     const char* what) {
  uint32_t id = 0;
  for (const auto& block : kUnits) {
    for (const auto& parameter : block.parameters) {
      if (parameter.trainable) {
        const at::Tensor& values = found.at(parameter.name);
        // The release is divided by the batch, a power of two, and multiplied again: no rounding.
        EXPECT_TRUE(at::equal(values, slow_noise(chain, id, values.numel()))) << what << ": " << parameter.name;
      }
      ++id;
    }
  }
}

TEST(NoiseBlt, IsItsDefinitionBitForBit) {
  std::vector<dp::StepId> steps;
  for (int64_t step = 0; step < 7; ++step) {
    steps.push_back({step});
    expect_noise_of(steps, released(steps), "one rank");
  }
}

class NoiseBltOnMesh : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, NoiseBltOnMesh, ::testing::Values("1x2x1", "1x4x1", "2x2x1", "1x1x2", "1x2x2", "2x1x2"),
                         [](const auto& param) { return "mesh_" + std::string(param.param); });

TEST_P(NoiseBltOnMesh, IsThatOfOneRankBitForBit) {
  const std::vector<dp::StepId> steps{{0}, {1}, {2}, {3}, {4}};
  for (const bool streamed : {false, true}) {
    expect_noise_of(steps, released(steps, fsdp::MeshShape::parse(GetParam()), streamed),
                    streamed ? "streamed" : "summed up");
  }
}

TEST(NoiseBlt, KeptInHostMemoryIsTheSameBits) {
  const std::vector<dp::StepId> steps{{0}, {1}, {2}, {3}, {4}};
  for (const char* shape : {"1x1x1", "1x2x1"}) {
    expect_noise_of(
        steps, released_noise(fsdp::MeshShape::parse(shape), kKey, steps, false, 0, {.blt = kBlt, .on_host = true}),
        shape);
  }
}

TEST(NoiseBlt, ARepeatedOrASkippedStepBeginsAChain) {
  expect_noise_of({{1, 1}}, released({{0}, {1}, {1, 1}}), "repeated");
  expect_noise_of({{4}}, released({{0}, {1}, {4}}), "skipped");
  expect_noise_of({{1, 1}, {2}}, released({{0}, {1}, {1, 1}, {2}}), "the new chain goes on");
  expect_noise_of({{3, 2}, {4, 1}}, released({{3, 2}, {4, 1}}), "attempts of one session follow each other");
}

// A chain longer than the rows that are known begins again.
TEST(NoiseBlt, AChainEndsWithItsRows) {
  std::vector<dp::StepId> steps;
  for (int64_t step = 0; step < 12; ++step) steps.push_back({step});
  expect_noise_of({{10}, {11}}, released(steps), "after the tenth");
}

// The premise of the proof (docs/guarantee.md, "Noise from buffers"): of the noise of a chain, weighted by c, fresh
// noise is left. To the rounding of sums of a few float32 numbers of order 1.
TEST(NoiseBlt, AddsUpToFreshNoise) {
  constexpr int64_t kSteps = 6, kCount = 50;
  std::vector<dp::StepId> chain;
  std::vector<at::Tensor> noise;
  for (int64_t t = 0; t < kSteps; ++t) {
    chain.push_back({t});
    noise.push_back(slow_noise(chain, 0, kCount).to(at::kDouble));
  }
  for (int64_t t = 0; t < kSteps; ++t) {
    at::Tensor sum = noise[static_cast<size_t>(t)].clone();
    for (int64_t i = 1; i <= t; ++i) {
      double coefficient = 0;
      for (size_t j = 0; j < kBlt.outputs.size(); ++j) {
        coefficient += static_cast<double>(kBlt.outputs[j]) *
                       std::pow(static_cast<double>(kBlt.decays[j]), static_cast<double>(i - 1));
      }
      sum += coefficient * noise[static_cast<size_t>(t - i)];
    }
    EXPECT_LT((sum - fresh_noise({t}, 0, kCount).to(at::kDouble)).abs().max().item<double>(), 1e-5) << t;
  }
}

TEST(NoiseBlt, HasTheVarianceOfItsInverse) {
  EXPECT_EQ(dp::NoiseBlt{}.variance(), 1);
  // 1 + x/2 + x²/8 + …, two steps apart: rows 1, 1/2, 1 + 1/8; the inverse 1 − x/2 + (1/4 − 1/8)·x² …
  const dp::NoiseBlt blt{.outputs = {0.5F}, .decays = {0.25F}, .separation = 2, .steps = 3};
  const double square = 1 + 0.25 + 1.125 * 1.125;
  EXPECT_NEAR(blt.variance(), square * (1 + 0.25 + 0.125 * 0.125), 1e-12);
}

TEST(NoiseBlt, RefusesWhatIsNone) {
  EXPECT_NO_THROW(dp::NoiseBlt{}.check());
  EXPECT_THROW((dp::NoiseBlt{.outputs = {0.5F}, .decays = {1.0F}}.check()), std::invalid_argument);
  EXPECT_THROW((dp::NoiseBlt{.outputs = {}, .decays = {0.5F}}.check()), std::invalid_argument);
  EXPECT_THROW((dp::NoiseBlt{}.rows()), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
