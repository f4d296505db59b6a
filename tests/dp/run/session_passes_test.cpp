// A session with balls-in-bins sampling: which of its logical batches are charged, and as which steps.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dp/run/session.h"
#include "tests/dp/run/session_world.h"
#include "tests/support/keys.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using tests::key_of;

constexpr int64_t kBins = 3;

class Passes {
 public:
  explicit Passes(const std::function<void(Session&)>& use, StepId first = {}, const Attempts& attempts = {}) {
    tests::run_mesh({}, [&](fsdp::Mesh& mesh) {
      const AdjustablePlan::Config plan{.sampling_rate = accountant::SamplingRate(1.0 / kBins), .bins = kBins};
      Session session(fsdp::borrowed(mesh), some_blocks(), {.plan = plan}, key_of(7), first);
      session.set_attempts(attempts);
      session.attach_ledger(accountant::LedgerWriter::create(path(), {{"adjacency", "zero-out"}}));
      with_noise(session, 1.0);
      use(session);
    });
  }

  static void with_noise(Session& session, double sigma) {
    session.set_terms(accountant::ClipNorm(kClipNorm), accountant::NoiseMultiplier(sigma));
  }
  static void backward(Session& session) { forward_and_backward(session, some_weights(at::kFloat), 0, 2); }
  static void step(Session& session) {
    backward(session);
    session.release();
  }

  // The charges: step, attempt.
  std::vector<std::pair<int64_t, int64_t>> charged() const {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const auto& entry : accountant::read_ledger(path()).entries) {
      EXPECT_EQ(entry.event,
                accountant::Event(accountant::BallsInBinsGaussianEvent{kBins, accountant::NoiseMultiplier(1.0)}));
      found.emplace_back(entry.step, entry.attempt);
    }
    return found;
  }

 private:
  std::filesystem::path path() const { return folder_.path() / "ledger.jsonl"; }
  tests::TemporaryFolder folder_;
};

using Charged = std::vector<std::pair<int64_t, int64_t>>;

TEST(SessionPasses, AreChargedAtTheirFirstSteps) {
  const Passes passes([](Session& session) {
    for (int64_t i = 0; i < 7; ++i) Passes::step(session);
  });
  EXPECT_EQ(passes.charged(), (Charged{{0, 0}, {kBins, 0}, {2 * kBins, 0}}));
}

TEST(SessionPasses, EndWhereTheNextOneBegins) {
  const Passes passes([](Session& session) {
    Passes::step(session);
    session.begin_pass();
    session.begin_pass();  // nothing was charged in between
    for (int64_t i = 0; i < kBins; ++i) Passes::step(session);
    session.begin_pass();
    Passes::step(session);
  });
  EXPECT_EQ(passes.charged(), (Charged{{0, 0}, {1, 0}, {1 + kBins, 0}}));
}

TEST(SessionPasses, ADroppedBatchWasAStepOfItsPass) {
  const Passes passes([](Session& session) {
    Passes::backward(session);
    session.abandon();
    EXPECT_EQ(session.next().step, 1);
    Passes::step(session);
    Passes::backward(session);
    session.abandon();
    session.begin_pass();
    Passes::step(session);
  });
  EXPECT_EQ(passes.charged(), (Charged{{0, 0}, {kBins, 0}}));
}

TEST(SessionPasses, HaveOneAttempt) {
  // Steps 1 and 2 began passes before, and are repeated: as another attempt where they begin one, and nowhere else.
  const Passes passes(
      [](Session& session) {
        for (int64_t i = 0; i < 2; ++i) Passes::step(session);
        session.begin_pass();
        Passes::step(session);
        EXPECT_EQ(session.next().attempt, 1);
      },
      {}, Attempts::from_json({{1, 1}, {2, 1}}));
  EXPECT_EQ(passes.charged(), (Charged{{0, 0}, {2, 1}}));
}

TEST(SessionPasses, KeepTheirTerms) {
  const Passes passes([](Session& session) {
    Passes::step(session);
    Passes::with_noise(session, 2.0);
    EXPECT_THROW(Passes::backward(session), std::invalid_argument) << "less noise could follow as well";
    session.abandon();
    session.set_terms(accountant::ClipNorm(2 * kClipNorm), accountant::NoiseMultiplier(1.0));
    EXPECT_THROW(Passes::backward(session), std::invalid_argument);
    session.abandon();
    session.begin_pass();
    Passes::step(session);
  });
  EXPECT_EQ(passes.charged(), (Charged{{0, 0}, {kBins, 0}}));
}

TEST(SessionPasses, BeginBetweenLogicalBatches) {
  const Passes passes([](Session& session) {
    Passes::backward(session);
    EXPECT_THROW(session.begin_pass(), std::logic_error);
  });
  tests::run_mesh({}, [](fsdp::Mesh& mesh) {
    Session poisson(fsdp::borrowed(mesh), some_blocks(), {}, key_of(7));
    EXPECT_THROW(poisson.begin_pass(), std::logic_error);
  });
}

TEST(SessionPasses, OfWhatIsNotDerivedAreRefused) {
  const auto plan = [](AdjustablePlan::Config config) { return AdjustablePlan(config); };
  EXPECT_THROW(plan({.bins = 0}), std::invalid_argument);
  EXPECT_THROW(plan({.bins = 100'001}), std::invalid_argument);
  EXPECT_THROW(plan({.largest_batch = {{10, 5}}, .bins = 3}), std::invalid_argument);
  const auto quantile = ClipQuantile::around(accountant::ClipNorm(1), 5);
  EXPECT_THROW(plan({.clip_quantile = quantile, .expected_batch = 5, .bins = 3}), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::dp
