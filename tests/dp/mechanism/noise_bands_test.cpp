// Correlated noise: its values against a slow twin, where a chain ends, and what its proof needs of the columns.
#include "dp/mechanism/noise_bands.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/gaussian_tensor.h"
#include "tests/dp/mechanism/released_noise.h"

namespace ghostshard::tests {
namespace {

const dp::NoiseBands kBands{.ratios = {0.7F, 0.5F, 0.1F}};
constexpr uint8_t kKey = 5;

float rounded_up(double value) {
  const auto rounded = static_cast<float>(value);
  return static_cast<double>(rounded) < value ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
                                              : rounded;
}

// z of one step for a whole parameter, as the mechanism must scale it.
at::Tensor fresh_noise(const dp::StepId& step, uint32_t parameter, int64_t count) {
  const auto key = key_of(kKey);
  at::Tensor z = at::zeros({count});
  kernels::add_gaussian(key.derive(dp::Purpose::kNoise, step), parameter, 0,
                        rounded_up(kBands.norm() * static_cast<double>(rounded_up(kSigma * kClip))), z);
  return z;
}

// The noise of the last of the steps, which are one chain: by the definition, element by element.
at::Tensor slow_noise(const std::vector<dp::StepId>& chain, uint32_t parameter, int64_t count) {
  std::vector<at::Tensor> x;
  for (const auto& step : chain) {
    at::Tensor noise = fresh_noise(step, parameter, count);
    for (size_t k = 1; k <= std::min(kBands.ratios.size(), x.size()); ++k) {
      const float* before = x[x.size() - k].const_data_ptr<float>();
      for (int64_t i = 0; i < count; ++i) {
        const volatile float product = before[i] * kBands.ratios[k - 1];  // volatile: rounded before it is subtracted
        const volatile float difference = noise.data_ptr<float>()[i] - product;
        noise.data_ptr<float>()[i] = difference;
      }
    }
    x.push_back(noise);
  }
  return x.back();
}

// Parameters' ids: their places in kUnits.
void expect_noise_of(const std::vector<dp::StepId>& chain, const std::map<std::string, at::Tensor>& released,
                     const char* what) {
  uint32_t id = 0;
  for (const auto& block : kUnits) {
    for (const auto& parameter : block.parameters) {
      if (parameter.trainable) {
        const at::Tensor& found = released.at(parameter.name);
        // The release is divided by the batch, a power of two, and multiplied again: no rounding.
        EXPECT_TRUE(at::equal(found, slow_noise(chain, id, found.numel()))) << what << ": " << parameter.name;
      }
      ++id;
    }
  }
}

TEST(NoiseBands, HaveTheVarianceOfTheirInverse) {
  EXPECT_EQ(dp::NoiseBands{}.variance(7), 1);
  // (1 + x/2)^-1 = 1 - x/2 + x²/4 - …, s² = 1.25, rounded up by a few units in the last place.
  constexpr double kRoundedUp = 1e-14;
  EXPECT_NEAR(dp::NoiseBands{{0.5F}}.variance(1), 1.25, kRoundedUp);
  EXPECT_NEAR(dp::NoiseBands{{0.5F}}.variance(3), 1.25 * (1 + 0.25 + 0.0625), kRoundedUp);
}

TEST(NoiseBands, AreTheirDefinitionBitForBit) {
  std::vector<dp::StepId> steps;
  for (int64_t step = 0; step < 7; ++step) {
    steps.push_back({step});
    expect_noise_of(steps, released_noise({}, kKey, steps, false, 0, {.bands = kBands}), "one rank");
  }
}

class NoiseBandsOnMesh : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, NoiseBandsOnMesh, ::testing::Values("1x2x1", "1x4x1", "2x2x1", "1x1x2", "1x2x2", "2x1x2"),
                         [](const auto& param) { return "mesh_" + std::string(param.param); });

TEST_P(NoiseBandsOnMesh, AreThoseOfOneRankBitForBit) {
  const std::vector<dp::StepId> steps{{0}, {1}, {2}, {3}, {4}};
  for (const bool streamed : {false, true}) {
    expect_noise_of(
        steps,
        released_noise(fsdp::MeshShape::parse(GetParam()), kKey, steps, streamed, streamed ? 2 : 0, {.bands = kBands}),
        streamed ? "streamed" : "summed up");
  }
}

TEST(NoiseBands, KeptInHostMemoryAreTheSameBits) {
  const std::vector<dp::StepId> steps{{0}, {1}, {2}, {3}, {4}};
  for (const char* shape : {"1x1x1", "1x2x1"}) {
    expect_noise_of(
        steps, released_noise(fsdp::MeshShape::parse(shape), kKey, steps, false, 0, {.bands = kBands, .on_host = true}),
        shape);
  }
}

TEST(NoiseBands, ARepeatedOrASkippedStepBeginsAChain) {
  const auto released = [](const std::vector<dp::StepId>& steps) {
    return released_noise({}, kKey, steps, false, 0, {.bands = kBands});
  };
  expect_noise_of({{1, 1}}, released({{0}, {1}, {1, 1}}), "repeated");
  expect_noise_of({{4}}, released({{0}, {1}, {4}}), "skipped");
  expect_noise_of({{1, 1}, {2}}, released({{0}, {1}, {1, 1}, {2}}), "the new chain goes on");
  expect_noise_of({{3, 2}, {4, 1}}, released({{3, 2}, {4, 1}}), "attempts of one session follow each other");
}

TEST(NoiseBands, AStepThatWasGivenUpBeginsAChain) {
  const auto mesh = lone_mesh();
  fsdp::ShardedModel model(*mesh, kUnits);
  const auto key = key_of(kKey);
  const auto plan = dp::DpPlan::make({.units = 100,
                                      .expected_batch = kExpectedBatch,
                                      .steps = 10,
                                      .clip_norm = accountant::ClipNorm(kClip),
                                      .noise_bands = kBands,
                                      .noise_multiplier = accountant::NoiseMultiplier(kSigma)});
  auto clipper = plan.clipper(model, {.streamed = std::vector<bool>(model.groups().size(), true)});
  auto mechanism = plan.mechanism(model, key, nullptr);
  const auto release = [&](const dp::StepId& step) {
    auto sum = clipper.begin(mechanism, step);
    return mechanism.release(std::move(sum), step);
  };
  release({0});
  {
    auto given_up = clipper.begin(mechanism, {1});
    clipper.add(given_up, clipper.record(0));
  }
  const auto gradient = release({2});
  const auto& parameter = model.parameter("a");
  const at::Tensor found = gradient.slices().shard(parameter.group()).narrow(0, parameter.offset(), parameter.numel());
  EXPECT_TRUE(at::equal(found.cpu() * static_cast<double>(kExpectedBatch),
                        slow_noise({{2}}, parameter.id(), parameter.numel())));
}

// ---------------------------------------------------------------------------------------------------------------
// The proof's premises (docs/guarantee.md, "Correlated noise"), from whole matrices

// One release: its step, and the release before it whose noise it takes back (-1: it begins a chain).
struct Release {
  int64_t step;
  int64_t before;
};

// Row r of M: release r's noise and what it takes back, x = M⁻¹·z. Column u: where a unit drawn in release u stands.
std::vector<std::vector<double>> mixing(const std::vector<Release>& releases, const dp::NoiseBands& bands) {
  std::vector<std::vector<double>> rows;
  for (size_t r = 0; r < releases.size(); ++r) {
    rows.emplace_back(releases.size(), 0);
    int64_t ancestor = static_cast<int64_t>(r);
    for (size_t k = 0; k <= bands.ratios.size() && ancestor >= 0; ++k) {
      rows[r][static_cast<size_t>(ancestor)] = k == 0 ? 1 : static_cast<double>(bands.ratios[k - 1]);
      ancestor = releases[static_cast<size_t>(ancestor)].before;
    }
  }
  return rows;
}

double columns_product(const std::vector<std::vector<double>>& rows, size_t a, size_t b) {
  double sum = 0;
  for (const auto& row : rows) sum += row[a] * row[b];
  return sum;
}

double longest_column(const std::vector<Release>& releases, const dp::NoiseBands& bands) {
  const auto rows = mixing(releases, bands);
  double most = 0;
  for (size_t u = 0; u < releases.size(); ++u) most = std::max(most, columns_product(rows, u, u));
  return std::sqrt(most);
}

TEST(NoiseBands, NoColumnIsLongerThanAccountedAndThoseOfOneGroupDoNotMeet) {
  // Steps 0 to 8; then a crash, and from step 6 on again in a session of its own; another crash, from step 7.
  std::vector<Release> releases;
  const auto session = [&](int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      releases.push_back({step, step == first ? -1 : static_cast<int64_t>(releases.size()) - 1});
    }
  };
  session(0, 8);
  session(6, 9);
  session(7, 12);
  EXPECT_LE(longest_column(releases, kBands), kBands.norm());
  const auto rows = mixing(releases, kBands);
  for (size_t a = 0; a < releases.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if ((releases[a].step - releases[b].step) % kBands.count() == 0) {
        EXPECT_EQ(columns_product(rows, a, b), 0);
      }
    }
  }
}

// Why a repeated step takes nothing back: with the noise history of its checkpoint, the units of the step before would
// stand in two rows of that lag.
TEST(NoiseBands, ARepeatedStepThatTookTheSameNoiseBackWouldExceedWhatIsCharged) {
  const std::vector<Release> branched{{0, -1}, {1, 0}, {1, 0}};  // step 1 twice, both after the same step 0
  EXPECT_GT(longest_column(branched, {.ratios = {0.7F}}), dp::NoiseBands{.ratios = {0.7F}}.norm() * 1.1);
}

TEST(NoiseBands, HaveANormNeverBelowTheTrueOne) {
  for (const auto& ratios : {std::vector<float>{0.1F}, {0.3F, 0.7F, 1e-4F}, std::vector<float>(1000, 0.3331F)}) {
    long double squares = 1;
    for (const float ratio : ratios) squares += static_cast<long double>(ratio) * static_cast<long double>(ratio);
    const double norm = dp::NoiseBands{.ratios = ratios}.norm();
    EXPECT_GE(static_cast<long double>(norm), std::sqrt(squares));
    EXPECT_LE(norm, static_cast<double>(std::sqrt(squares)) * (1 + 1e-12));
  }
  EXPECT_EQ(dp::NoiseBands{}.norm(), 1);
}

TEST(NoiseBands, RefuseRatiosThatAreNoNumbers) {
  EXPECT_THROW((dp::NoiseBands{.ratios = {NAN}}.check()), std::invalid_argument);
  EXPECT_THROW((dp::NoiseBands{.ratios = {0.5F, 2.5F}}.check()), std::invalid_argument);
  EXPECT_THROW((dp::NoiseBands{.ratios = std::vector<float>(1024, 0.1F)}.check()), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::tests
