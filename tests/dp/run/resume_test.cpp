// A ledger's proof for a run that is resumed, and the limits of that proof.
#include "dp/run/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <fstream>

#include "dp/mechanism/plan.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::dp {
namespace {

using accountant::LedgerContents;
using accountant::LedgerWriter;
using testing::HasSubstr;
using testing::ThrowsMessage;

DpConfig small_config() {
  return {.units = 100,
          .expected_batch = 10,
          .steps = 20,
          .noise_multiplier = accountant::NoiseMultiplier(1.0),
          .delta = accountant::Delta(1e-6)};
}

class Resume : public testing::Test {
 protected:
  // Steps 0, 1, 2 charged; a mark after the first two.
  LedgerMark three_steps_marked_after_two(const DpConfig& config = small_config()) {
    const DpPlan plan = DpPlan::make(config);
    const RunKey key = RunKey::generate();
    LedgerWriter writer = LedgerWriter::create(path_, plan.ledger_header(key));
    writer.append(0, 0, plan.event());
    writer.append(1, 0, plan.event());
    const LedgerMark mark = mark_of(writer);
    writer.append(2, 0, plan.event());
    return mark;
  }
  LedgerContents contents() const { return accountant::read_ledger(path_); }
  void keep_lines(size_t count) const {
    std::ifstream in(path_);
    std::string kept, line;
    for (size_t i = 0; i < count && std::getline(in, line); ++i) kept += line + '\n';
    in.close();
    std::ofstream(path_) << kept;
  }

  const tests::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path(), path_ = folder_ / "ledger.jsonl";
};

TEST_F(Resume, ALedgerAtTheMarkGoesOnWithFirstAttempts) {
  const LedgerMark mark = three_steps_marked_after_two();
  keep_lines(3);
  const Attempts attempts = resume_attempts(contents(), ledger_mark_from_json(to_json(mark)), 2);
  EXPECT_EQ(attempts.redone(), 0);
  EXPECT_EQ(attempts.of(2).attempt, 0);
}

TEST_F(Resume, ALedgerAheadMakesNewAttemptsOfExactlyTheStepsThatAreRedone) {
  const LedgerMark mark = three_steps_marked_after_two();
  {
    LedgerWriter writer = LedgerWriter::reopen(path_);
    writer.append(2, 1, DpPlan::make(small_config()).event());
    writer.append(3, 0, DpPlan::make(small_config()).event());
  }
  const Attempts attempts = Attempts::from_json(resume_attempts(contents(), mark, 2).to_json());
  EXPECT_EQ(attempts.redone(), 2);
  EXPECT_EQ(attempts.of(2).attempt, 2);
  EXPECT_EQ(attempts.of(3).attempt, 1);
  EXPECT_EQ(attempts.of(4).attempt, 0);
}

TEST_F(Resume, AnEpochLineAfterTheMarkIsNoRelease) {
  const LedgerMark mark = three_steps_marked_after_two();
  keep_lines(3);
  LedgerWriter::reopen(path_).begin_epoch(2, "another", {{"origin", "operating system"}});
  EXPECT_EQ(resume_attempts(contents(), mark, 2).redone(), 0);
}

TEST_F(Resume, WithoutACheckpointEveryChargedStepIsRedone) {
  three_steps_marked_after_two();
  const Attempts attempts = resume_attempts(contents(), std::nullopt, 0);
  EXPECT_EQ(attempts.redone(), 3);
  for (const int64_t step : {0, 1, 2}) EXPECT_EQ(attempts.of(step).attempt, 1);
}

TEST_F(Resume, ALedgerBehindTheCheckpointIsRefused) {
  const LedgerMark mark = three_steps_marked_after_two();
  keep_lines(2);
  EXPECT_THAT([&] { resume_attempts(contents(), mark, 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("behind the checkpoint")));
}

TEST_F(Resume, ALedgerRewrittenWithTheSameHeaderIsRefused) {
  const LedgerMark mark = three_steps_marked_after_two();
  keep_lines(2);
  const auto event = DpPlan::make(small_config()).event();
  LedgerWriter writer = LedgerWriter::reopen(path_);
  writer.append(1, 5, event);
  writer.append(2, 0, event);
  EXPECT_THAT([&] { resume_attempts(contents(), mark, 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("cannot be proven")));
}

TEST_F(Resume, AnotherRunsLedgerIsRefused) {
  const LedgerMark mark = three_steps_marked_after_two();
  std::filesystem::remove(path_);
  three_steps_marked_after_two();
  EXPECT_THAT([&] { resume_attempts(contents(), mark, 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("another run's")));
}

TEST_F(Resume, ACheckpointThatClaimsMoreStepsThanWereChargedIsRefused) {
  const LedgerMark mark = three_steps_marked_after_two();
  EXPECT_THAT([&] { resume_attempts(contents(), mark, 3); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("has done 3 steps, but the ledger charged 2")));
}

TEST_F(Resume, ACheckpointThatCountsOtherReleasesUpToItsLineIsRefused) {
  LedgerMark mark = three_steps_marked_after_two();
  for (const int64_t releases : {1, 3}) {
    mark.releases = releases;
    EXPECT_THAT([&] { resume_attempts(contents(), mark, 2); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("releases, holds 2")));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The plan of a run under way

TEST_F(Resume, ThePlanTakesItsNoiseFromTheLedger) {
  DpConfig config = small_config();
  config.noise_multiplier.reset();
  config.target_epsilon = accountant::Epsilon(3);
  three_steps_marked_after_two(config);
  const DpPlan plan = DpPlan::resume(config, contents());
  EXPECT_EQ(plan.noise_multiplier().value(), contents().header.at("noise_multiplier").get<double>());
  EXPECT_EQ(plan.promised_epsilon().value(), 3);
}

struct OtherPlan {
  const char* name;
  std::function<void(DpConfig&)> change;
  const char* message;
};
void PrintTo(const OtherPlan& c, std::ostream* out) { *out << c.name; }

class OtherPlans : public Resume, public testing::WithParamInterface<OtherPlan> {};

TEST_P(OtherPlans, IsRefusedByName) {
  three_steps_marked_after_two();
  DpConfig config = small_config();
  GetParam().change(config);
  EXPECT_THAT([&] { (void)DpPlan::resume(config, contents()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Of, OtherPlans,
    testing::Values(OtherPlan{"Units", [](auto& c) { c.units = 101; }, "units is 100, here it would be 101"},
                    OtherPlan{"Batch", [](auto& c) { c.expected_batch = 11; }, "is 10, here it would be 11"},
                    OtherPlan{"Steps", [](auto& c) { c.steps = 21; }, "planned_steps is 20"},
                    OtherPlan{"Noise", [](auto& c) { c.noise_multiplier = accountant::NoiseMultiplier(0.9); },
                              "noise_multiplier is 1.0, here it would be 0.9"},
                    OtherPlan{"ClipNorm", [](auto& c) { c.clip_norm = accountant::ClipNorm(2); }, "clip_norm is 1.0"},
                    OtherPlan{"Delta", [](auto& c) { c.delta = accountant::Delta(1e-5); }, "delta is 1e-06"},
                    OtherPlan{"Adjacency", [](auto& c) { c.adjacency = accountant::Adjacency::kAddOrRemove; },
                              "adjacency is \"zero-out\""},
                    OtherPlan{"ATarget",
                              [](auto& c) {
                                c.noise_multiplier.reset();
                                c.target_epsilon = accountant::Epsilon(3);
                              },
                              "target_epsilon is null, here it would be 3.0"}),
    [](const auto& c) { return c.param.name; });

TEST_F(Resume, AReleaseOfAnotherNoiseMakesTheLedgerUnusable) {
  three_steps_marked_after_two();
  LedgerWriter::reopen(path_).append(
      3, 0, accountant::PoissonGaussianEvent{accountant::SamplingRate(0.1), accountant::NoiseMultiplier(0.5)});
  EXPECT_THAT([&] { (void)DpPlan::resume(small_config(), contents()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("a release that this plan does not make, at sequence 4")));
}

TEST(StepsWithin, StopsAtTheLastStepWithinTheLimit) {
  const DpPlan plan = DpPlan::make(small_config());
  const accountant::Epsilon promise = plan.promised_epsilon();
  const auto within = [&](accountant::Epsilon limit, int64_t releases, int64_t steps) {
    accountant::Rounds charged = plan.rounds();
    for (int64_t step = 0; step < releases; ++step) charged.add(step);
    return plan.steps_within(limit, charged, releases, steps);
  };
  EXPECT_EQ(within(promise, 0, 20), 20);
  EXPECT_EQ(within(promise, 5, 15), 15);
  EXPECT_EQ(within(promise, 5, 20), 15);  // five were redone
  EXPECT_EQ(within(promise, 20, 1), 0);
  EXPECT_EQ(within(promise, 40, 7), 0);
  EXPECT_EQ(within(promise, 20, 0), 0);
  EXPECT_EQ(within(accountant::Epsilon(plan.epsilon_after(23).upper), 20, 10), 3);
}

// ---------------------------------------------------------------------------------------------------------------
// The key

class KeyFile : public Resume {
 protected:
  std::filesystem::path write(const char* name, char fill) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << std::string(32, fill);
    ::chmod(path.c_str(), 0600);
    return path;
  }
};

TEST_F(KeyFile, IsRecognisedUnderAnEarlierRunIdAndAnotherFileIsNoticed) {
  const RunKey first = RunKey::from_file(write("a", 'a'));
  const RunId id = run_id_from_hex(first.run_id_hex());
  const RunKey again = RunKey::recall(folder_ / "a", id);
  EXPECT_EQ(again.run_id_hex(), first.run_id_hex());
  EXPECT_EQ(again.commitment(), first.commitment());
  EXPECT_EQ(again.derive(Purpose::kNoise, {3, 1}), first.derive(Purpose::kNoise, {3, 1}));
  EXPECT_NE(RunKey::recall(write("b", 'b'), id).commitment(), first.commitment());
  EXPECT_NE(RunKey::from_file(folder_ / "a").commitment(), first.commitment()) << "another run id";
}

TEST_F(KeyFile, NeitherCommitmentNorTagIsAnotherSubkey) {
  const RunKey key = RunKey::from_file(write("a", 'a'));
  const auto as_hex = [](const kernels::ChaChaKey& bytes) {
    std::string text;
    char pair[3];
    for (const uint8_t byte : bytes) {
      std::snprintf(pair, sizeof pair, "%02x", byte);
      text += pair;
    }
    return text;
  };
  EXPECT_EQ(key.commitment(), as_hex(key.derive(Purpose::kCommitment, {})));
  EXPECT_NE(key.commitment(), as_hex(key.derive(Purpose::kNoise, {})));
  EXPECT_NE(key.commitment(), as_hex(key.derive(Purpose::kCoins, {})));
}

TEST_F(KeyFile, UnderAnEarlierRunIdNothingIsReleased) {
  const RunKey first = RunKey::from_file(write("a", 'a'));
  first.claim_for_mechanism();
  EXPECT_THROW(RunKey::recall(folder_ / "a", first.run_id()).claim_for_mechanism(), std::logic_error);
}

TEST_F(KeyFile, ATagTellsTextsApartAndDependsOnTheKey) {
  const RunKey key = RunKey::from_file(write("a", 'a'));
  const std::string tag = key.tag_of("x");
  EXPECT_EQ(key.tag_of("x"), tag);
  EXPECT_NE(key.tag_of("y"), tag);
  EXPECT_NE(RunKey::recall(write("b", 'b'), key.run_id()).tag_of("x"), tag);
}

TEST(RunIds, AreThirtyTwoDigits) {
  EXPECT_THROW((void)run_id_from_hex("00"), std::invalid_argument);
  EXPECT_THROW((void)run_id_from_hex(std::string(32, 'g')), std::invalid_argument);
}

}  // namespace
}  // namespace ghostshard::dp
