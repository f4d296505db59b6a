// A session with correlated noise: its bits on every mesh, where a chain ends, which steps are charged, and what is
// refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "dp/run/session.h"
#include "tests/dp/run/session_world.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using tests::key_of;

constexpr int64_t kGroups = 3;
constexpr double kSigma = 1.5;
const NoiseCorrelation kBands{.bands = {.ratios = {0.5F, -0.25F}}};
const NoiseCorrelation kChain{.chain = {.steps = kGroups, .decay = 0.7F}};

AdjustablePlan::Config plan_of(const NoiseCorrelation& correlation) {
  return {.sampling_rate = accountant::SamplingRate(0.25), .correlation = correlation};
}

void with_terms(Session& session, double clip_norm, double sigma) {
  session.set_terms(accountant::ClipNorm(clip_norm), accountant::NoiseMultiplier(sigma));
}

// The next step, of no unit: this rank's rows of the noise.
std::vector<at::Tensor> noise_of(Session& session) {
  session.begin_microbatch(1, /*of_nobody=*/true);
  session.clip();
  return session.release();
}

float rounded_up(double value) {
  const auto rounded = static_cast<float>(value);
  return static_cast<double>(rounded) < value ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
                                              : rounded;
}

// White noise of this deviation under the key of the step.
std::vector<at::Tensor> white(fsdp::Mesh& mesh, const StepId& step, float deviation) {
  Session session(fsdp::borrowed(mesh), some_blocks(), {}, key_of(7), step);
  with_terms(session, static_cast<double>(deviation), 1);
  return noise_of(session);
}

using Noise = std::vector<std::vector<at::Tensor>>;  // by step, by parameter

// The twin, by the words of dp/mechanism/noise_bands.h and noise_chain.h. back: how many steps of its chain lie before.
std::vector<at::Tensor> slow_noise(fsdp::Mesh& mesh, const NoiseCorrelation& correlation, const StepId& step,
                                   int64_t back, const Noise& before) {
  const NoiseBands& bands = correlation.bands;
  const NoiseChain& chain = correlation.chain;
  const double norm = bands.norm() * chain.norm(step.step);
  const float deviation = rounded_up(norm * static_cast<double>(rounded_up(kSigma * kClipNorm)));
  std::vector<at::Tensor> noise = white(mesh, step, deviation);
  if (chain.steps > 1 && back > 0) {
    const auto again = white(mesh, {.step = step.step - 1}, chain.taken_back(deviation));
    for (size_t i = 0; i < noise.size(); ++i) noise[i] = noise[i] - again[i];
  }
  for (int64_t k = 1; k <= std::min(back, bands.count() - 1); ++k) {
    for (size_t i = 0; i < noise.size(); ++i) {
      const at::Tensor part = before[before.size() - static_cast<size_t>(k)][i] *
                              at::scalar_tensor(bands.ratios[static_cast<size_t>(k - 1)]);
      noise[i] = noise[i] - part;
    }
  }
  return noise;
}

// A logical batch: the group that it is drawn from, and the step that it is, with so many steps of its chain before.
struct Turn {
  int64_t group, step, back;
  bool dropped = false;
};
// The group's turn is there, one is left out, one is dropped, and everything goes on. A chain also ends every kGroups.
const std::vector<Turn> kTurns = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2},       {0, 3, 3}, {2, 5, 0},
                                  {0, 6, 1}, {1, 7, 2}, {2, 8, 0, true}, {0, 9, 0}, {1, 10, 1}};

class SessionNoise : public testing::TestWithParam<const char*> {
 protected:
  static void expect_twin(const NoiseCorrelation& correlation) {
    tests::run_mesh(fsdp::MeshShape::parse(GetParam()), [&](fsdp::Mesh& mesh) {
      Session session(fsdp::borrowed(mesh), some_blocks(), {.plan = plan_of(correlation)}, key_of(7));
      with_terms(session, kClipNorm, kSigma);
      Noise before;
      for (const Turn& turn : kTurns) {
        session.draw_from(turn.group);
        ASSERT_EQ(session.next().step, turn.step);
        if (turn.dropped) {
          session.begin_microbatch(1, true);
          session.clip();
          session.abandon();
          ASSERT_EQ(session.next().step, turn.step + 1) << "it was its group's turn";
          continue;
        }
        const bool is_chain = correlation.chain.steps > 1;
        const int64_t back = is_chain && turn.step % kGroups == 0 ? 0 : turn.back;
        const auto expected = slow_noise(mesh, correlation, {.step = turn.step}, back, before);
        before.push_back(noise_of(session));
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(at::equal(before.back()[i], expected[i])) << "step " << turn.step << ", parameter " << i;
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, SessionNoise, testing::Values("1x1x1", "1x2x1", "2x2x1"),
                         [](const auto& test) { return std::string("mesh_") + test.param; });

TEST_P(SessionNoise, OfBandsIsItsDefinitionBitForBit) { expect_twin(kBands); }
TEST_P(SessionNoise, OfAChainIsItsDefinitionBitForBit) { expect_twin(kChain); }

using Steps = std::vector<std::pair<int64_t, int64_t>>;  // and attempts

TEST(SessionGroups, AreChargedStepByStepAtTheRateOfAGroup) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "ledger.jsonl";
  Session session(fsdp::Mesh::single(), some_blocks(), {.plan = plan_of(kBands)}, key_of(7));
  session.set_attempts(Attempts::from_json({{5, 2}, {6, 1}}));
  session.attach_ledger(accountant::LedgerWriter::create(path, {{"adjacency", "zero-out"}}));
  with_terms(session, kClipNorm, kSigma);
  for (const int64_t group : {0, 1, 2, 2, 0}) {
    session.draw_from(group);
    (void)noise_of(session);
  }
  Steps charged;
  for (const auto& entry : accountant::read_ledger(path).entries) {
    const accountant::PoissonGaussianEvent event{accountant::SamplingRate(0.25), accountant::NoiseMultiplier(kSigma)};
    EXPECT_EQ(entry.event, accountant::Event(event));
    charged.emplace_back(entry.step, entry.attempt);
  }
  EXPECT_EQ(charged, (Steps{{0, 0}, {1, 0}, {2, 0}, {5, 2}, {6, 1}}));
}

TEST(SessionGroups, AreThoseOfThePlan) {
  Session white_noise(fsdp::Mesh::single(), some_blocks(), {}, key_of(7));
  EXPECT_THROW(white_noise.draw_from(0), std::logic_error);
  Session session(fsdp::Mesh::single(), some_blocks(), {.plan = plan_of(kChain)}, key_of(7));
  with_terms(session, kClipNorm, kSigma);
  EXPECT_THROW(session.draw_from(kGroups), std::invalid_argument);
  EXPECT_THROW(session.draw_from(-1), std::invalid_argument);
  forward_and_backward(session, some_weights(at::kFloat), 0, 2);
  EXPECT_THROW(session.draw_from(1), std::logic_error) << "within a logical batch";
}

TEST(SessionGroups, KeepTheTermsOfTheirFirstStep) {
  Session session(fsdp::Mesh::single(), some_blocks(), {.plan = plan_of(kBands)}, key_of(7));
  EXPECT_THROW(session.set_terms(accountant::ClipNorm(1), std::nullopt), std::invalid_argument);
  with_terms(session, kClipNorm, kSigma);
  with_terms(session, kClipNorm, kSigma);
  EXPECT_THROW(with_terms(session, kClipNorm, kSigma * 2), std::invalid_argument) << "more noise is not derived either";
  EXPECT_THROW(with_terms(session, kClipNorm / 2, kSigma), std::invalid_argument);
}

TEST(SessionGroups, OfAChainKeepTheirKey) {
  Session chain(fsdp::Mesh::single(), some_blocks(), {.plan = plan_of(kChain)}, key_of(7));
  EXPECT_THROW(chain.renew_noise_key({}), std::logic_error);
  Session bands(fsdp::Mesh::single(), some_blocks(), {.plan = plan_of(kBands)}, key_of(7));
  EXPECT_NO_THROW(bands.renew_noise_key({1}));
}

TEST(SessionGroups, OfWhatIsNotDerivedAreRefused) {
  const auto plan = [](AdjustablePlan::Config config) { return AdjustablePlan(config); };
  EXPECT_THROW(plan({.correlation = {kBands.bands, kChain.chain}}), std::invalid_argument);
  EXPECT_THROW(plan({.correlation = {.chain = {.steps = 2, .decay = 0}}}), std::invalid_argument);
  EXPECT_THROW(plan({.bins = 3, .correlation = kBands}), std::invalid_argument);
  EXPECT_THROW(plan({.largest_batch = {{10, 5}}, .correlation = kChain}), std::invalid_argument);
  const auto quantile = ClipQuantile::around(accountant::ClipNorm(1), 5);
  EXPECT_THROW(plan({.clip_quantile = quantile, .expected_batch = 5, .correlation = kBands}), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::dp
