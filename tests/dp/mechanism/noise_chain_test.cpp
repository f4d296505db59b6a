// Noise that is drawn again: its values against a slow twin, where a chain ends, and what its proof needs of the
// columns.
#include "dp/mechanism/noise_chain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/gaussian_tensor.h"
#include "tests/dp/mechanism/released_noise.h"

namespace ghostshard::tests {
namespace {

const dp::NoiseChain kChain{.steps = 3, .decay = 0.7F};
constexpr uint8_t kKey = 6;

float rounded_up(double value) {
  const auto rounded = static_cast<float>(value);
  return static_cast<double>(rounded) < value ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
                                              : rounded;
}

// s_p of the step, by its definition.
double slow_norm(const dp::NoiseChain& chain, int64_t step) {
  double sum = 0;
  for (int64_t i = 0; i < chain.steps - step % chain.steps; ++i)
    sum += std::pow(static_cast<double>(chain.decay), 2 * i);
  return std::sqrt(sum);
}

// The noise of a step that takes back that of `before`, if there is one: by the definition, element by element.
at::Tensor slow_noise(const dp::StepId& step, const std::optional<dp::StepId>& before, uint32_t parameter,
                      int64_t count) {
  const auto key = key_of(kKey);
  const float scale = rounded_up(kChain.norm(step.step) * static_cast<double>(rounded_up(kSigma * kClip)));
  at::Tensor noise = at::zeros({count}), again = at::zeros({count});
  kernels::add_gaussian(key.derive(dp::Purpose::kNoise, step), parameter, 0, scale, noise);
  if (!before) return noise;
  // decay·scale, not above it
  float part = kChain.decay * scale;
  if (static_cast<double>(part) > static_cast<double>(kChain.decay) * static_cast<double>(scale)) {
    part = std::nextafter(part, 0.0F);
  }
  kernels::add_gaussian(key.derive(dp::Purpose::kNoise, *before), parameter, 0, part, again);
  for (int64_t i = 0; i < count; ++i) {
    const volatile float difference = noise.const_data_ptr<float>()[i] - again.const_data_ptr<float>()[i];
    noise.data_ptr<float>()[i] = difference;
  }
  return noise;
}

std::map<std::string, at::Tensor> released(const std::vector<dp::StepId>& steps, const fsdp::MeshShape& shape = {},
                                           bool streamed = false) {
  return released_noise(shape, kKey, steps, streamed, streamed ? 2 : 0, {.chain = kChain});
}

// Parameters' ids: their places in kUnits.
void expect_noise_of(const dp::StepId& step, const std::optional<dp::StepId>& before,
                     const std::map<std::string, at::Tensor>& found, const char* what) {
  uint32_t id = 0;
  for (const auto& block : kUnits) {
    for (const auto& parameter : block.parameters) {
      if (parameter.trainable) {
        const at::Tensor& values = found.at(parameter.name);
        // The release is divided by the batch, a power of two, and multiplied again: no rounding.
        EXPECT_TRUE(at::equal(values, slow_noise(step, before, id, values.numel())))
            << what << ", step " << step.step << ": " << parameter.name;
      }
      ++id;
    }
  }
}

TEST(NoiseChain, IsItsDefinitionBitForBit) {
  std::vector<dp::StepId> steps;
  for (int64_t step = 0; step < 7; ++step) {
    const auto before = step % 3 == 0 ? std::nullopt : std::optional(steps.back());
    steps.push_back({step});
    expect_noise_of({step}, before, released(steps), "one rank");
  }
}

class NoiseChainOnMesh : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, NoiseChainOnMesh, ::testing::Values("1x2x1", "1x4x1", "2x2x1", "1x1x2", "1x2x2", "2x1x2"),
                         [](const auto& param) { return "mesh_" + std::string(param.param); });

TEST_P(NoiseChainOnMesh, IsThatOfOneRankBitForBit) {
  const auto shape = fsdp::MeshShape::parse(GetParam());
  for (const bool streamed : {false, true}) {
    expect_noise_of({2}, dp::StepId{1}, released({{0}, {1}, {2}}, shape, streamed),
                    streamed ? "streamed" : "summed up");
  }
}

TEST(NoiseChain, BeginsWithARepeatedOrASkippedStepAndWithEachMultipleOfItsSteps) {
  expect_noise_of({1, 1}, {}, released({{0}, {1}, {1, 1}}), "repeated");
  expect_noise_of({4}, {}, released({{0}, {1}, {4}}), "skipped");
  expect_noise_of({2}, dp::StepId{1, 1}, released({{0}, {1}, {1, 1}, {2}}), "the new chain goes on");
  expect_noise_of({5, 1}, dp::StepId{4, 2}, released({{4, 2}, {5, 1}}), "attempts of one session follow each other");
  expect_noise_of({3}, {}, released({{1}, {2}, {3}}), "a session within a chain ends where that would have");
}

// ---------------------------------------------------------------------------------------------------------------
// The proof's premises (docs/guarantee.md, "Noise that is drawn again"), from whole matrices

using Matrix = std::vector<std::vector<double>>;

// One release: its step, and the release whose noise it takes back (-1: none).
struct Release {
  int64_t step;
  int64_t before;
};

// Sessions of consecutive steps, each a pair of its first and its last one.
std::vector<Release> releases_of(const std::vector<std::pair<int64_t, int64_t>>& sessions,
                                 const dp::NoiseChain& chain) {
  std::vector<Release> releases;
  for (const auto& [first, last] : sessions) {
    for (int64_t step = first; step <= last; ++step) {
      const bool alone = step == first || step % chain.steps == 0;
      releases.push_back({step, alone ? -1 : static_cast<int64_t>(releases.size()) - 1});
    }
  }
  return releases;
}

// X, of the noise x = X·z.
Matrix noise_matrix(const std::vector<Release>& releases, const dp::NoiseChain& chain) {
  Matrix x(releases.size(), std::vector<double>(releases.size(), 0));
  for (size_t r = 0; r < releases.size(); ++r) {
    x[r][r] = chain.norm(releases[r].step);
    if (releases[r].before >= 0) {
      x[r][static_cast<size_t>(releases[r].before)] = -static_cast<double>(chain.decay) * x[r][r];
    }
  }
  return x;
}

// X⁻¹ by forward substitution, any lower triangular X. Column u: where a unit drawn in release u stands.
Matrix inverse(const Matrix& x) {
  const size_t n = x.size();
  Matrix c(n, std::vector<double>(n, 0));
  for (size_t u = 0; u < n; ++u) {
    for (size_t r = u; r < n; ++r) {
      double value = r == u ? 1 : 0;
      for (size_t k = u; k < r; ++k) value -= x[r][k] * c[k][u];
      c[r][u] = value / x[r][r];
    }
  }
  return c;
}

double squares(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// The largest ‖Σ ±column‖² over every set of the group's rounds and all signs, less the number of rounds in the set.
double most_beyond_the_charge(const std::vector<Release>& releases, const Matrix& c, int64_t group, int64_t groups) {
  std::vector<size_t> rounds;
  for (size_t r = 0; r < releases.size(); ++r) {
    if (releases[r].step % groups == group) rounds.push_back(r);
  }
  double most = -std::numeric_limits<double>::infinity();
  std::vector<int> signs(rounds.size(), -1);  // counts through -1, 0, 1
  for (bool done = false; !done;) {
    std::vector<double> rows(releases.size(), 0);
    double charged = 0;
    for (size_t i = 0; i < rounds.size(); ++i) {
      for (size_t r = 0; r < rows.size(); ++r) rows[r] += signs[i] * c[r][rounds[i]];
      charged += signs[i] == 0 ? 0 : 1;
    }
    most = std::max(most, squares(rows) - charged);
    done = true;
    for (size_t i = 0; i < signs.size() && done; ++i) {
      done = signs[i] == 1;
      signs[i] = signs[i] == 1 ? -1 : signs[i] + 1;
    }
  }
  return most;
}

constexpr double kRounding = 1e-13;  // sums of fewer than 100 products of order 1, in double

// Steps 0 to 8; then a crash, and from step 6 on again in a session of its own; another crash, from step 7.
TEST(NoiseChain, NoSetOfAUnitsRoundsStandsOutMoreThanCharged) {
  for (const dp::NoiseChain& chain : {kChain, dp::NoiseChain{4, 1.0F}, dp::NoiseChain{5, 0.25F}}) {
    const auto releases = releases_of({{0, 8}, {6, 9}, {7, 12}}, chain);
    const Matrix c = inverse(noise_matrix(releases, chain));
    for (int64_t group = 0; group < chain.steps; ++group) {
      EXPECT_LE(most_beyond_the_charge(releases, c, group, chain.steps), kRounding) << chain.steps << ", " << group;
    }
  }
}

// What noise_norm promises is not only enough but what is needed: whole chains have columns of norm 1.
TEST(NoiseChain, WastesNothingWithinAWholeChain) {
  const auto releases = releases_of({{0, 2}}, kChain);
  const Matrix c = inverse(noise_matrix(releases, kChain));
  for (size_t u = 0; u < 3; ++u) {
    double column = 0;
    for (size_t r = 0; r < 3; ++r) column += c[r][u] * c[r][u];
    EXPECT_NEAR(column, 1, kRounding) << u;
  }
}

// Why a repeated step takes nothing back: the units of the step before would stand in two rows after it.
TEST(NoiseChain, ARepeatedStepThatTookTheSameNoiseBackWouldExceedWhatIsCharged) {
  const std::vector<Release> branched{{0, -1}, {1, 0}, {1, 0}};
  const Matrix c = inverse(noise_matrix(branched, {.steps = 2, .decay = 0.7F}));
  EXPECT_GT(most_beyond_the_charge(branched, c, 0, 2), 0.1);
}

// Why a chain ends: units of its first step would be drawn again while they still stand in its rows.
TEST(NoiseChain, ALongerChainWouldExceedWhatIsCharged) {
  std::vector<Release> releases = releases_of({{0, 5}}, kChain);
  releases[3].before = 2;
  const Matrix c = inverse(noise_matrix(releases, kChain));
  EXPECT_GT(most_beyond_the_charge(releases, c, 0, 3), 0.1);
}

TEST(NoiseChain, HasANormNeverBelowTheTrueOne) {
  for (const dp::NoiseChain& chain : {kChain, dp::NoiseChain{1000, 0.9987F}, dp::NoiseChain{100'000, 1.0F}}) {
    for (const int64_t step : {int64_t{0}, int64_t{1}, chain.steps - 1, 3 * chain.steps + 1}) {
      const auto square = static_cast<long double>(chain.decay) * static_cast<long double>(chain.decay);
      long double sum = 0;
      for (int64_t i = step % chain.steps; i < chain.steps; ++i) sum = 1 + square * sum;
      EXPECT_GE(static_cast<long double>(chain.norm(step)), std::sqrt(sum));
      EXPECT_LE(chain.norm(step), static_cast<double>(std::sqrt(sum)) * (1 + 1e-10));
    }
  }
  EXPECT_NEAR(kChain.norm(4), slow_norm(kChain, 1), 1e-12);
  EXPECT_EQ(dp::NoiseChain{}.norm(7), 1);
}

TEST(NoiseChain, TakesBackNoMoreThanItsDecay) {
  for (const float scale : {1.0F, 0.1F, 3.3e-5F, 12345.678F}) {
    const double exact = static_cast<double>(kChain.decay) * static_cast<double>(scale);
    EXPECT_LE(static_cast<double>(kChain.taken_back(scale)), exact);
    EXPECT_GE(static_cast<double>(kChain.taken_back(scale)), exact * (1 - 0x1p-23));
  }
}

TEST(NoiseChain, HasTheVarianceOfItsSteps) {
  const double square = 0.7 * 0.7, least = 1, middle = 1 + square, most = 1 + square * middle;
  EXPECT_NEAR(kChain.variance(), (most + (middle + least) * (1 + square)) / 3, 1e-6);  // 0.7 as a float
  EXPECT_EQ(dp::NoiseChain{}.variance(), 1);
}

TEST(NoiseChain, RefusesWhatIsNone) {
  EXPECT_NO_THROW((dp::NoiseChain{2, 1.0F}.check()));
  for (const dp::NoiseChain& bad : {dp::NoiseChain{0, 0.5F}, dp::NoiseChain{1'000'001, 0.5F}, dp::NoiseChain{1, 0.5F},
                                    dp::NoiseChain{2, 0.0F}, dp::NoiseChain{2, 1.01F}, dp::NoiseChain{2, NAN}}) {
    EXPECT_THROW(bad.check(), std::invalid_argument) << bad.steps << ", " << bad.decay;
  }
}

}  // namespace
}  // namespace ghostshard::tests
