#include "accountant/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cmath>
#include <csignal>
#include <fstream>

#include "accountant/ledger/sha256.h"
#include "tests/accountant/ledger_fixture.h"

namespace ghostshard::accountant {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Sha256, GivesTheDigestsOfTheStandard) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// -----------------------------------------------------------------------------------------------------------------
// What is written is what is read

TEST_F(Ledger, ReadsBackWhatWasAppended) {
  write_three_releases();
  const LedgerContents contents = read_ledger(path_);
  EXPECT_EQ(contents.header.at("run_id"), "a run");
  EXPECT_EQ(contents.header.at("schema"), kLedgerSchema);
  EXPECT_EQ(contents.header.at("library_version"), kLibraryVersion);
  ASSERT_EQ(contents.entries.size(), 3U);
  EXPECT_EQ(contents.entries[0].event, kEvent);
  EXPECT_EQ(contents.entries[2].sequence, 3);
  EXPECT_EQ(contents.entries[2].step, 1);
  EXPECT_EQ(contents.entries[2].attempt, 1);
  EXPECT_EQ(contents.entries[2].event, Event(GaussianEvent{NoiseMultiplier(2)}));
  EXPECT_FALSE(contents.dropped_partial_line);
}

TEST_F(Ledger, ChainsTheHashesOfTheExactLines) {
  write_three_releases();
  const auto text = lines();
  ASSERT_EQ(text.size(), 4U);
  EXPECT_EQ(nlohmann::json::parse(text[0]).at("previous"), std::string(64, '0'));
  EXPECT_EQ(nlohmann::json::parse(text[1]).at("previous"), sha256_hex(text[0]));
  EXPECT_EQ(nlohmann::json::parse(text[2]).at("previous"), sha256_hex(text[1]));
  EXPECT_EQ(nlohmann::json::parse(text[3]).at("previous"), sha256_hex(text[2]));
  const LedgerContents contents = read_ledger(path_);
  EXPECT_EQ(contents.header_hash, sha256_hex(text[0]));
  EXPECT_EQ(contents.entries[1].hash, sha256_hex(text[2]));
  EXPECT_EQ(contents.head, sha256_hex(text[3]));
}

TEST_F(Ledger, AnAppendIsInTheFileWhenItReturns) {
  LedgerWriter writer = LedgerWriter::create(path_, header());
  EXPECT_EQ(read_ledger(path_).head, writer.head());
  writer.append(0, 0, kEvent);
  EXPECT_EQ(read_ledger(path_).entries.size(), 1U);
  EXPECT_EQ(read_ledger(path_).head, writer.head());
}

TEST_F(Ledger, ReopenGoesOnWhereTheFileEnds) {
  write_three_releases();
  LedgerWriter writer = LedgerWriter::reopen(path_);
  EXPECT_EQ(writer.entries(), 3);
  EXPECT_EQ(writer.head(), read_ledger(path_).head);
  writer.append(2, 1, kEvent);
  EXPECT_EQ(read_ledger(path_).entries.back().sequence, 4);
}

TEST_F(Ledger, AReleaseKeepsItsClipNormIfItHasOneOfItsOwn) {
  constexpr double kNumber = 0.1 + 0.2;  // every digit counts
  {
    LedgerWriter writer = LedgerWriter::create(path_, header());
    writer.append(0, 0, kEvent, ClipNorm(kNumber));
    writer.append(1, 0, kEvent);
  }
  LedgerWriter::reopen(path_).append(2, 0, kEvent, ClipNorm(7));
  const LedgerContents contents = read_ledger(path_);
  EXPECT_EQ(contents.entries[0].clip_norm->value(), kNumber);
  EXPECT_FALSE(contents.entries[1].clip_norm.has_value());
  EXPECT_EQ(contents.entries[2].clip_norm->value(), 7);
  EXPECT_FALSE(nlohmann::json::parse(lines()[2]).contains("clip_norm"));
}

TEST_F(Ledger, AMovedWriterWritesAndTheOldOneRefuses) {
  LedgerWriter writer = LedgerWriter::create(path_, header());
  LedgerWriter other = std::move(writer);
  other.append(0, 0, kEvent);
  EXPECT_THROW(writer.append(1, 0, kEvent), std::runtime_error);
  EXPECT_EQ(read_ledger(path_).entries.size(), 1U);
}

TEST_F(Ledger, AnEpochIsALineOfTheChainAndNoRelease) {
  write_three_releases();
  {
    LedgerWriter writer = LedgerWriter::reopen(path_);
    writer.begin_epoch(2, "another run id", {{"origin", "a dice"}});
    EXPECT_EQ(writer.entries(), 3);
    writer.append(2, 0, kEvent);
    writer.begin_epoch(3, "a third one", {{"origin", "a dice"}, {"commitment", "ab"}});
    EXPECT_EQ(writer.head(), read_ledger(path_).head);
  }
  LedgerWriter::reopen(path_).append(3, 0, kEvent);
  const LedgerContents contents = read_ledger(path_);
  ASSERT_EQ(contents.entries.size(), 5U);
  EXPECT_EQ(contents.entries[3].sequence, 5);
  EXPECT_EQ(contents.entries[4].sequence, 7);
  ASSERT_EQ(contents.epochs.size(), 2U);
  EXPECT_EQ(contents.epochs[0].number, 1);
  EXPECT_EQ(contents.epochs[0].step, 2);
  EXPECT_EQ(contents.epochs[0].run_id, "another run id");
  EXPECT_EQ(contents.epochs[1].number, 2);
  EXPECT_EQ(contents.epochs[1].key.at("commitment"), "ab");
  EXPECT_EQ(contents.epochs[1].hash, sha256_hex(lines()[6]));
}

TEST_F(Ledger, NoStepIsChargedTwiceWithOneAttemptAlsoAfterReopening) {
  write_three_releases();
  LedgerWriter writer = LedgerWriter::reopen(path_);
  for (const auto& charged : {std::pair{0, 0}, {1, 0}, {1, 1}}) {
    EXPECT_THAT([&] { writer.append(charged.first, charged.second, kEvent); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("its noise would repeat")));
  }
  EXPECT_EQ(read_ledger(path_).entries.size(), 3U);
  writer.append(0, 1, kEvent);
  writer.append(1, 2, kEvent);
  EXPECT_THROW(writer.append(1, 2, kEvent), std::invalid_argument);
  EXPECT_EQ(read_ledger(path_).entries.size(), 5U);
}

// -----------------------------------------------------------------------------------------------------------------
// Refusals of the writer

TEST_F(Ledger, CreateRefusesAFileThatExistsAndLeavesItAlone) {
  write_three_releases();
  const std::string before = bytes();
  EXPECT_THAT([&] { (void)LedgerWriter::create(path_, header()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("must not exist yet")));
  EXPECT_EQ(bytes(), before);
}

TEST_F(Ledger, ASecondWriterIsRefusedWhileTheFirstLives) {
  {
    LedgerWriter writer = LedgerWriter::create(path_, header());
    EXPECT_THAT([&] { (void)LedgerWriter::reopen(path_); },
                ThrowsMessage<std::runtime_error>(HasSubstr("another writer has it open")));
    writer.append(0, 0, kEvent);
  }
  EXPECT_EQ(LedgerWriter::reopen(path_).entries(), 1);
}

TEST_F(Ledger, AssigningAWriterFreesTheLedgerItHeld) {
  LedgerWriter writer = LedgerWriter::create(path_, header());
  LedgerWriter other = LedgerWriter::create(folder_ / "other.jsonl", header());
  writer = std::move(other);
  EXPECT_NO_THROW((void)LedgerWriter::reopen(path_));
}

// A full disk, played by a limit on file sizes that cuts the line after five bytes.
class FullDisk {
 public:
  explicit FullDisk(rlim_t most_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{most_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(Ledger, AfterAFailedAppendEveryFurtherOneIsRefused) {
  LedgerWriter writer = LedgerWriter::create(path_, header());
  writer.append(0, 0, kEvent);
  const std::string head = writer.head();
  {
    const FullDisk full(std::filesystem::file_size(path_) + 5);
    EXPECT_THAT([&] { writer.append(1, 0, kEvent); },
                ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("cannot write"), HasSubstr(path_.string()))));
  }
  EXPECT_THAT([&] { writer.append(1, 0, kEvent); },
              ThrowsMessage<std::runtime_error>(HasSubstr("an earlier append failed")));
  EXPECT_EQ(writer.head(), head);
  EXPECT_EQ(writer.entries(), 1);
  EXPECT_TRUE(read_ledger(path_).dropped_partial_line);
  EXPECT_EQ(read_ledger(path_).head, head);
}

TEST_F(Ledger, AHeaderThatCannotBeWrittenLeavesNoFile) {
  {
    const FullDisk full(5);
    EXPECT_THROW((void)LedgerWriter::create(path_, header()), std::runtime_error);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_NO_THROW((void)LedgerWriter::create(path_, header()));
}

TEST_F(Ledger, CreateSaysWhyADirectoryIsUnusable) {
  EXPECT_THAT([&] { (void)LedgerWriter::create(folder_ / "missing" / "ledger.jsonl", header()); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("cannot create"), HasSubstr("missing/ledger.jsonl"),
                                                         HasSubstr("No such file or directory"))));
  write_three_releases();
  EXPECT_THAT([&] { (void)LedgerWriter::create(path_ / "ledger.jsonl", header()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("Not a directory")));
}

TEST_F(Ledger, CreateRefusesADirectoryWithoutWritePermission) {
  // /proc takes no new files from anyone; permission bits would not stop a superuser.
  EXPECT_THAT([&] { (void)LedgerWriter::create("/proc/ghostshard_ledger.jsonl", header()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("cannot create /proc/ghostshard_ledger.jsonl: ")));
}

TEST_F(Ledger, ReadAndReopenOfAMissingFileSayWhy) {
  EXPECT_THAT([&] { (void)read_ledger(path_); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("cannot open " + path_.string() + ": No such file")));
  EXPECT_THROW((void)LedgerWriter::reopen(path_), std::invalid_argument);
}

// A path that cannot be is the caller's mistake, as it is for every other file that is read.
TEST_F(Ledger, APathThatCannotBeIsAMistakeAndAnErrorOfTheSystemIsNone) {
  std::filesystem::create_symlink(path_, path_);
  for (const std::filesystem::path& path : {path_, folder_ / std::string(300, 'x')}) {
    const auto refused = ThrowsMessage<std::invalid_argument>(HasSubstr("cannot open " + path.string() + ": "));
    EXPECT_THAT([&] { (void)read_ledger(path); }, refused);
    EXPECT_THAT([&] { (void)LedgerWriter::reopen(path); }, refused);
  }
  std::filesystem::remove(path_);
  write_three_releases();
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit none { .rlim_cur = 0, .rlim_max = before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW((void)read_ledger(path_), std::runtime_error) << "no descriptor is free";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// A pipe that nobody writes into would hold the reader for ever, and a device would fill memory.
TEST_F(Ledger, IsARegularFile) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const std::filesystem::path& path : {path_, folder_, std::filesystem::path("/dev/zero")}) {
    const auto refused = ThrowsMessage<std::invalid_argument>(HasSubstr(path.string() + " must be a regular file"));
    EXPECT_THAT([&] { (void)read_ledger(path); }, refused);
    EXPECT_THAT([&] { (void)LedgerWriter::reopen(path); }, refused);
  }
}

TEST_F(Ledger, RefusesNegativeStepsAndStaysUsable) {
  LedgerWriter writer = LedgerWriter::create(path_, header());
  EXPECT_THROW(writer.append(-1, 0, kEvent), std::invalid_argument);
  EXPECT_THROW(writer.append(0, -1, kEvent), std::invalid_argument);
  writer.append(0, 0, kEvent);
  EXPECT_EQ(read_ledger(path_).entries.size(), 1U);
}

struct BadHeader {
  const char* name;
  nlohmann::json header;
  const char* message;
};

void PrintTo(const BadHeader& c, std::ostream* out) { *out << c.name; }

class LedgerHeader : public Ledger, public testing::WithParamInterface<BadHeader> {};

TEST_P(LedgerHeader, IsRefusedAndNoFileIsLeft) {
  EXPECT_THAT([&] { (void)LedgerWriter::create(path_, GetParam().header); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(GetParam().message)));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

INSTANTIATE_TEST_SUITE_P(
    Bad, LedgerHeader,
    testing::Values(BadHeader{"NoObject", nlohmann::json::array({1}), "must be a JSON object"},
                    BadHeader{"NoAdjacency", {{"run_id", "x"}}, "adjacency must be one of"},
                    BadHeader{"UnknownAdjacency", {{"adjacency", "both"}}, "adjacency must be one of"},
                    BadHeader{"ReservedName", {{"adjacency", "zero-out"}, {"previous", "0"}}, "reserved name previous"},
                    BadHeader{"NaN", {{"adjacency", "zero-out"}, {"clip_norm", std::nan("")}}, "finite numbers only"},
                    BadHeader{"NotUtf8", {{"adjacency", "zero-out"}, {"run_id", "\xff"}}, "valid UTF-8"}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace ghostshard::accountant
