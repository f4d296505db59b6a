// A release is permitted only once its line is on the disk: what the ledger synchronises, and when.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <fstream>

#include "accountant/ledger.h"
#include "tests/support/synchronised.h"
#include "tests/support/temporary_folder.h"

// In the place of the system's fsync for the whole program.
extern "C" int fsync(int descriptor) {
  ghostshard::tests::note_synchronised(descriptor);
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

namespace ghostshard::accountant {
namespace {

class LedgerOnDisk : public testing::Test {
 protected:
  int64_t size() const { return static_cast<int64_t>(std::filesystem::file_size(path_)); }
  // The ledger was synchronised since the last call, and with all its bytes the last time.
  void expect_synchronised() const {
    int64_t bytes = -1;
    for (const auto& call : tests::synchronised()) {
      if (call.name == path_.filename()) bytes = call.bytes;
    }
    EXPECT_EQ(bytes, size());
    tests::synchronised().clear();
  }
  bool folder_synchronised() const {
    for (const auto& call : tests::synchronised()) {
      if (call.folder && call.name == folder_.path().filename()) return true;
    }
    return false;
  }

  const tests::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "ledger.jsonl";
  const nlohmann::json header_ = {{"adjacency", "zero-out"}};
  const Event event_ = GaussianEvent{NoiseMultiplier(2)};
};

TEST_F(LedgerOnDisk, IsAnEmptyLedgerAndItsNameWhenItWasCreated) {
  tests::synchronised().clear();
  const auto writer = LedgerWriter::create(path_, header_);
  EXPECT_TRUE(folder_synchronised()) << "a crash could take the file's name";
  expect_synchronised();
}

TEST_F(LedgerOnDisk, IsEveryLineWhenItsAppendReturns) {
  auto writer = LedgerWriter::create(path_, header_);
  tests::synchronised().clear();
  writer.append(0, 0, event_);
  expect_synchronised();
  writer.begin_epoch(1, "a run", nlohmann::json::object());
  expect_synchronised();
  writer.append(1, 0, event_);
  expect_synchronised();
}

TEST_F(LedgerOnDisk, IsWhatAReopenedLedgerRestsOn) {
  LedgerWriter::create(path_, header_).append(0, 0, event_);
  for (const char* rest : {"", "{\"cut sho"}) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << rest;
    tests::synchronised().clear();
    const auto writer = LedgerWriter::reopen(path_);
    expect_synchronised();
  }
}

}  // namespace
}  // namespace ghostshard::accountant
