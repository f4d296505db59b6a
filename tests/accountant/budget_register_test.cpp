#include "accountant/budget_register.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>

#include "accountant/ledger/chain.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::accountant {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

const Event kStep = PoissonGaussianEvent{SamplingRate(0.05), NoiseMultiplier(1.0)};
const Delta kDelta(1e-6);

std::string id(char digit) { return std::string(32, digit); }

double epsilon_of(int64_t steps) {
  const auto accountant = make_accountant("contour", Adjacency::kZeroOut);
  accountant->compose(kStep, steps);
  return accountant->epsilon(kDelta).upper;
}

class BudgetRegisterTest : public testing::Test {
 protected:
  BudgetRegister open() const { return BudgetRegister::open(path_, Adjacency::kZeroOut); }
  // A register whose data may have `steps` steps and not one more.
  BudgetRegister with_room_for(int64_t steps) const {
    BudgetRegister found = open();
    (void)found.agree_on_limit(found.fingerprint("data"), Epsilon(epsilon_of(steps)), kDelta);
    return found;
  }
  BudgetSession session(const std::string& run, const std::string& session, std::optional<int64_t> steps) const {
    BudgetSession made{.data = open().fingerprint("data"), .run = run, .session = session, .unit = "text", .plan = {}};
    if (steps) made.plan = Charge{kStep, *steps};
    return made;
  }
  DataBudget budget() const { return budget_of(read_budget_register(path_), open().fingerprint("data")); }
  double charged() const { return budget().charged.upper; }
  double planned() const { return budget().planned.upper; }
  std::string bytes(const std::filesystem::path& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const tests::TemporaryFolder temporary_;
  const std::filesystem::path path_ = temporary_.path() / "budgets.jsonl", key_ = path_.string() + ".key";
};

TEST_F(BudgetRegisterTest, RunsOnTheSameDataAddUp) {
  BudgetRegister budgets = with_room_for(20);
  budgets.begin(session(id('a'), id('a'), 12));
  EXPECT_EQ(charged(), 0);
  EXPECT_EQ(planned(), epsilon_of(12));
  budgets.charge(id('a'), {kStep, 12});
  budgets.end(id('a'), {{kStep, 12}});
  EXPECT_EQ(charged(), epsilon_of(12));
  EXPECT_THAT([&] { budgets.begin(session(id('b'), id('b'), 9)); },
              ThrowsMessage<BudgetExceeded>(HasSubstr("1 run(s) are registered")));
  budgets.begin(session(id('b'), id('b'), 8));
  budgets.charge(id('b'), {kStep, 8});
  EXPECT_EQ(charged(), epsilon_of(20));
  EXPECT_EQ(budget().runs, 2);
}

TEST_F(BudgetRegisterTest, OtherDataHasALimitOfItsOwn) {
  BudgetRegister budgets = with_room_for(5);
  EXPECT_NE(budgets.fingerprint("data"), budgets.fingerprint("other data"));
  EXPECT_THAT([&] { (void)budgets.agree_on_limit(budgets.fingerprint("other data"), {}, kDelta); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("--budget-limit")));
  BudgetSession other = session(id('a'), id('a'), 50);
  other.data = budgets.fingerprint("other data");
  (void)budgets.agree_on_limit(other.data, Epsilon(epsilon_of(50)), kDelta);
  budgets.begin(other);
  budgets.begin(session(id('b'), id('b'), 5));
}

TEST_F(BudgetRegisterTest, RunsUnderWayKeepTheirPlans) {
  BudgetRegister budgets = with_room_for(20);
  budgets.begin(session(id('a'), id('a'), 12));
  budgets.charge(id('a'), {kStep, 1});
  EXPECT_THROW(budgets.begin(session(id('b'), id('b'), 9)), BudgetExceeded);
  EXPECT_THROW(budgets.check(budgets.fingerprint("data"), id('b'), {kStep, 9}), BudgetExceeded);
  budgets.check(budgets.fingerprint("data"), id('b'), {kStep, 8});
  budgets.end(id('a'), {{kStep, 1}});  // it stopped early
  budgets.begin(session(id('b'), id('b'), 19));
}

// A crash: no end. The run goes on as itself, and what it was charged ahead of use is all that is lost.
TEST_F(BudgetRegisterTest, AResumedRunTakesItsOwnPlan) {
  BudgetRegister budgets = with_room_for(20);
  budgets.begin(session(id('a'), id('a'), 18));
  budgets.charge(id('a'), {kStep, 10});
  budgets.begin(session(id('a'), id('b'), 10));  // resumed after its eighth step, two are lost
  EXPECT_EQ(planned(), epsilon_of(20));
  EXPECT_EQ(budget().runs, 1);
  EXPECT_THROW(budgets.begin(session(id('a'), id('c'), 11)), BudgetExceeded);
}

// Else a register that was put aside would forget what the run has spent.
TEST_F(BudgetRegisterTest, ARunThatGoesOnMustBeKnown) {
  BudgetRegister budgets = with_room_for(20);
  EXPECT_THAT([&] { budgets.begin(session(id('a'), id('b'), 5), /*charged=*/0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("does not know the run")));
  budgets.begin(session(id('a'), id('a'), 5));
  budgets.begin(session(id('a'), id('b'), 5), /*charged=*/0);
}

// A copy of an earlier hour would say that all runs have spent less than this one alone.
TEST_F(BudgetRegisterTest, ARunThatGoesOnIsRefusedARegisterThatKnowsOfLess) {
  BudgetRegister budgets = with_room_for(20);
  budgets.begin(session(id('a'), id('a'), 5));
  budgets.charge(id('a'), {kStep, 3});
  budgets.end(id('a'), {{kStep, 3}});
  budgets.begin(session(id('a'), id('b'), 2), /*charged=*/3);
  budgets.charge(id('b'), {kStep, 1});
  EXPECT_THAT([&] { budgets.begin(session(id('a'), id('c'), 2), /*charged=*/5); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("put back to an earlier state")));
  budgets.begin(session(id('a'), id('c'), 2), /*charged=*/4);
}

TEST_F(BudgetRegisterTest, ARegisterThatIsPutBackUnderWayIsRefused) {
  BudgetRegister budgets = with_room_for(20), other = open();
  budgets.begin(session(id('a'), id('a'), {}));
  other.begin(session(id('b'), id('b'), {}));
  other.charge(id('b'), {kStep, 2});
  const std::string before = bytes(path_);
  budgets.charge(id('a'), {kStep, 1});
  other.charge(id('b'), {kStep, 1});
  budgets.charge(id('a'), {kStep, 1});  // lines of others are no harm
  const std::string whole = bytes(path_);
  std::ofstream(path_, std::ios::binary) << before;
  const auto put_back = ThrowsMessage<std::invalid_argument>(HasSubstr("put back to an earlier state"));
  EXPECT_THAT([&] { budgets.charge(id('a'), {kStep, 1}); }, put_back);
  EXPECT_THAT([&] { (void)budgets.facts(open().fingerprint("data")); }, put_back);
  EXPECT_THAT([&] { other.end(id('b'), {}); }, put_back);
  EXPECT_EQ(bytes(path_), before);
  std::ofstream(path_, std::ios::binary) << whole;
  budgets.charge(id('a'), {kStep, 1});
  EXPECT_EQ(charged(), epsilon_of(6));
}

// Whoever copies a run's folder and resumes both makes the steps twice.
TEST_F(BudgetRegisterTest, ACopyOfARunIsChargedBesideIt) {
  BudgetRegister budgets = with_room_for(20);
  budgets.begin(session(id('a'), id('a'), 10));
  budgets.charge(id('a'), {kStep, 4});
  budgets.begin(session(id('a'), id('b'), 6));
  budgets.charge(id('b'), {kStep, 6});
  budgets.charge(id('a'), {kStep, 6});  // the first process never ended
  EXPECT_EQ(charged(), epsilon_of(16));
  budgets.begin(session(id('a'), id('c'), 4));
  EXPECT_THROW(budgets.charge(id('b'), {kStep, 1}), BudgetExceeded);
}

TEST_F(BudgetRegisterTest, NobodyButTheSessionLowersItsCharge) {
  BudgetRegister budgets = with_room_for(20);
  budgets.begin(session(id('a'), id('a'), 12));
  budgets.charge(id('a'), {kStep, 5});
  EXPECT_THROW(budgets.end(id('a'), {{kStep, 6}}), std::invalid_argument);
  budgets.close(id('a'));
  EXPECT_EQ(planned(), epsilon_of(5));
  EXPECT_THROW(budgets.close(id('a')), std::invalid_argument);
  budgets.end(id('a'), {{kStep, 3}});
  EXPECT_EQ(charged(), epsilon_of(3));
  EXPECT_THROW(budgets.charge(id('a'), {kStep, 1}), std::invalid_argument);
}

TEST_F(BudgetRegisterTest, StepsWithoutAPlanAreRefusedAtTheLimit) {
  BudgetRegister budgets = with_room_for(3);
  budgets.begin(session(id('a'), id('a'), {}));
  for (int step = 0; step < 3; ++step) budgets.charge(id('a'), {kStep, 1});
  const std::string before = bytes(path_);
  EXPECT_THROW(budgets.charge(id('a'), {kStep, 1}), BudgetExceeded);
  EXPECT_EQ(bytes(path_), before);
}

TEST_F(BudgetRegisterTest, TheLimitStandsUntilItIsChanged) {
  BudgetRegister budgets = with_room_for(3);
  const std::string data = budgets.fingerprint("data");
  EXPECT_EQ(budgets.agree_on_limit(data, {}, Delta(1e-3)).delta, kDelta);
  EXPECT_THAT([&] { (void)budgets.agree_on_limit(data, Epsilon(50), kDelta); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("--data-set " + data)));
  EXPECT_THROW(budgets.begin(session(id('a'), id('a'), 4)), BudgetExceeded);
  budgets.change_limit(data, Epsilon(epsilon_of(4)));
  budgets.begin(session(id('a'), id('a'), 4));
}

TEST_F(BudgetRegisterTest, AUnitOfPrivacyIsKept) {
  BudgetRegister budgets = with_room_for(9);
  budgets.begin(session(id('a'), id('a'), 1));
  BudgetSession users = session(id('b'), id('b'), 1);
  users.unit = "user";
  EXPECT_THAT([&] { budgets.begin(users); }, ThrowsMessage<std::invalid_argument>(HasSubstr("\"text\"")));
}

// The file may be shown: the data is in it under a key alone, and the key stays with its owner.
TEST_F(BudgetRegisterTest, TheDataIsKnownByAKeyAlone) {
  BudgetRegister budgets = with_room_for(9);
  budgets.begin(session(id('a'), id('a'), 1));
  EXPECT_THAT(bytes(path_), HasSubstr(budgets.fingerprint("data")));
  struct stat status {};
  ASSERT_EQ(::stat(key_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600);
  const tests::TemporaryFolder other;
  EXPECT_NE(BudgetRegister::open(other.path() / "budgets.jsonl", Adjacency::kZeroOut).fingerprint("data"),
            budgets.fingerprint("data"));
  std::filesystem::permissions(key_, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  EXPECT_THAT([&] { open(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("0600")));
}

TEST_F(BudgetRegisterTest, RegisterAndKeyBelongTogether) {
  (void)with_room_for(9);
  std::filesystem::rename(key_, temporary_.path() / "away");
  EXPECT_THAT([&] { open(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("without its key")));
  const auto elsewhere = temporary_.path() / "other.jsonl";
  (void)BudgetRegister::open(elsewhere, Adjacency::kZeroOut);
  std::filesystem::rename(elsewhere.string() + ".key", key_);
  EXPECT_THAT([&] { open(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("is not that of")));
  std::filesystem::rename(temporary_.path() / "away", key_);
  std::filesystem::remove(path_);  // and with it what was spent
  EXPECT_THAT([&] { open(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("without its budget register")));
}

// What a full disk or a killed process can leave of a register that was being made: its key is the last to be written.
TEST_F(BudgetRegisterTest, OneThatWasNotMadeToItsEndIsMadeAnew) {
  (void)open();
  const std::string header = bytes(path_);
  for (const std::string& left : {std::string(), header.substr(0, 40), header.substr(0, header.size() - 1), header}) {
    std::ofstream(key_, std::ios::trunc).flush();
    std::ofstream(path_, std::ios::binary) << left;
    (void)with_room_for(9);
    EXPECT_EQ(bytes(key_).size(), 32);
    EXPECT_EQ(read_budget_register(path_).limits.size(), 1);
  }
  std::filesystem::remove(path_);
  std::ofstream(key_, std::ios::trunc).flush();
  (void)with_room_for(9);
}

TEST_F(BudgetRegisterTest, OneThatWasUsedIsNotMadeAnew) {
  (void)with_room_for(9);
  const std::string used = bytes(path_);
  std::ofstream(key_, std::ios::trunc).flush();
  EXPECT_THAT([&] { open(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("must hold exactly 32 bytes, has 0")));
  EXPECT_EQ(bytes(path_), used);
  std::ofstream(path_, std::ios::trunc) << "notes\n";  // not a register
  EXPECT_THAT([&] { open(); }, ThrowsMessage<std::invalid_argument>(HasSubstr("must hold exactly 32 bytes, has 0")));
  EXPECT_EQ(bytes(path_), "notes\n");
}

TEST_F(BudgetRegisterTest, AnotherAdjacencyIsRefused) {
  (void)with_room_for(9);
  EXPECT_THAT([&] { (void)BudgetRegister::open(path_, Adjacency::kReplaceOne); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("zero-out")));
}

TEST_F(BudgetRegisterTest, ALineThatWasChangedIsSeen) {
  BudgetRegister budgets = with_room_for(9);
  budgets.begin(session(id('a'), id('a'), 9));
  budgets.charge(id('a'), {kStep, 8});
  std::string text = bytes(path_);
  // The last line has none after it that would show it, the one before has.
  text.replace(text.find("\"count\":9"), 9, "\"count\":1");
  std::ofstream(path_, std::ios::binary) << text;
  EXPECT_THAT([&] { (void)read_budget_register(path_); }, ThrowsMessage<InvalidLedger>(HasSubstr("previous must be")));
}

TEST_F(BudgetRegisterTest, ALineCutShortByACrashIsMended) {
  BudgetRegister budgets = with_room_for(9);
  budgets.begin(session(id('a'), id('a'), 9));
  const std::string before = bytes(path_);
  std::ofstream(path_, std::ios::binary | std::ios::app) << R"({"count":8,"ev)";
  EXPECT_TRUE(read_budget_register(path_).dropped_partial_line);
  budgets.charge(id('a'), {kStep, 3});
  EXPECT_TRUE(bytes(path_).starts_with(before + "{"));
  EXPECT_EQ(charged(), epsilon_of(3));
  // Without its newline alone the line counts.
  std::string whole = bytes(path_);
  whole.pop_back();
  std::ofstream(path_, std::ios::binary) << whole;
  budgets.charge(id('a'), {kStep, 1});
  EXPECT_EQ(charged(), epsilon_of(4));
}

TEST_F(BudgetRegisterTest, ProcessesTakeTurns) {
  BudgetRegister budgets = with_room_for(8);
  budgets.begin(session(id('a'), id('a'), {}));
  // Each transaction opens its files anew, so threads lock each other out as processes do.
  std::atomic<int> refused = 0;
  const auto charge_twice = [&] {
    try {
      BudgetRegister mine = open();
      for (int step = 0; step < 2; ++step) mine.charge(id('a'), {kStep, 1});
    } catch (const std::exception&) {
      ++refused;
    }
  };
  std::vector<std::thread> processes;
  for (int i = 0; i < 4; ++i) processes.emplace_back(charge_twice);
  for (std::thread& process : processes) process.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(charged(), epsilon_of(8));
  EXPECT_THROW(budgets.charge(id('a'), {kStep, 1}), BudgetExceeded);
}

TEST(BudgetBlock, IsAHundredthOfThePlan) {
  EXPECT_EQ(budget_block(0), 1);
  EXPECT_EQ(budget_block(199), 1);
  EXPECT_EQ(budget_block(14063), 140);
}

}  // namespace
}  // namespace ghostshard::accountant
