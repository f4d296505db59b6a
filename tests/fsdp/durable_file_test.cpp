#include "fsdp/durable_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <fstream>
#include <iterator>
#include <string>

#include "fsdp/safetensors.h"
#include "tests/support/synchronised.h"
#include "tests/support/temporary_folder.h"

namespace ghostshard::tests {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// The errors of this thread's next calls of fsync, 0 for none, and how many calls there were.
thread_local std::deque<int> next_errors;
thread_local int synchronisations = 0;

}  // namespace
}  // namespace ghostshard::tests

// In the place of the system's fsync for the whole program: it fails on request.
extern "C" int fsync(int descriptor) {
  using namespace ghostshard::tests;
  ++synchronisations;
  note_synchronised(descriptor);
  if (!next_errors.empty()) {
    errno = next_errors.front();
    next_errors.pop_front();
    if (errno != 0) return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

namespace ghostshard::tests {
namespace {

class DurableFiles : public testing::Test {
 protected:
  DurableFiles() {
    next_errors.clear();
    synchronisations = 0;
  }
  ~DurableFiles() override { next_errors.clear(); }

  std::filesystem::path path() const { return folder_ / "file"; }
  std::string content() const {
    std::ifstream stream(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // Entries of the folder.
  int64_t entries() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(DurableFiles, AppearOrReplaceTheOldOne) {
  fsdp::write_durably(path(), "first");
  EXPECT_EQ(content(), "first");
  fsdp::write_durably(path(), std::string("a\0b", 3));
  EXPECT_EQ(content(), std::string("a\0b", 3));
  EXPECT_EQ(entries(), 1);
  EXPECT_EQ(synchronisations, 4) << "the file and its folder, twice";
}

TEST_F(DurableFiles, ThatAreNotCommittedLeaveTheOldOne) {
  fsdp::write_durably(path(), "old");
  {
    fsdp::DurableFile file(path());
    file.write("new", 3);
    EXPECT_EQ(content(), "old");
  }
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFiles, ReplaceThePartialFileThatACrashLeft) {
  std::ofstream(path().string() + ".partial") << "a longer text";
  fsdp::write_durably(path(), "short");
  EXPECT_EQ(content(), "short");
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFiles, AreSynchronisedAgainAfterASignal) {
  next_errors = {EINTR, EINTR, 0, EINTR};  // the file, then the folder
  fsdp::write_durably(path(), "text");
  EXPECT_EQ(content(), "text");
  EXPECT_EQ(synchronisations, 5);
}

TEST_F(DurableFiles, ThatCannotBeSynchronisedLeaveTheOldOne) {
  fsdp::write_durably(path(), "old");
  next_errors = {EIO};
  EXPECT_THAT([&] { fsdp::write_durably(path(), "new"); },
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr(path().string()), HasSubstr("cannot be synchronised: Input/output error"))));
  EXPECT_TRUE(next_errors.empty());
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(DurableFiles, SayThatTheFolderCannotBeSynchronised) {
  next_errors = {0, EIO};
  EXPECT_THAT(
      [&] { fsdp::write_durably(path(), "new"); },
      ThrowsMessage<std::runtime_error>(HasSubstr(folder_.string() + " cannot be synchronised: Input/output error")));
  EXPECT_EQ(entries(), 1) << "no partial file";
}

TEST_F(DurableFiles, RefuseAFolderInTheirPlace) {
  std::filesystem::create_directory(path());
  EXPECT_THAT([&] { fsdp::write_durably(path(), "text"); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr(path().string() + " cannot be written: it is a folder, a device, a pipe")));
  EXPECT_EQ(entries(), 1) << "no partial file";
}

TEST_F(DurableFiles, RefuseAFileInPlaceOfTheirFolder) {
  fsdp::write_durably(path(), "text");
  EXPECT_THAT([&] { fsdp::write_durably(path() / "inside", "text"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("inside.partial cannot be created: Not a directory")));
}

// The owner may not write, and the superuser gives up the right to write everywhere for the time of the test.
class ReadOnlyFolder {
 public:
  explicit ReadOnlyFolder(std::filesystem::path folder) : folder_(std::move(folder)), user_(::setfsuid(kNobody)) {
    ::chmod(folder_.c_str(), 0555);
  }
  ~ReadOnlyFolder() {
    ::setfsuid(static_cast<uid_t>(user_));
    ::chmod(folder_.c_str(), 0755);
  }
  ReadOnlyFolder(const ReadOnlyFolder&) = delete;
  ReadOnlyFolder& operator=(const ReadOnlyFolder&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  std::filesystem::path folder_;
  int user_;
};

TEST_F(DurableFiles, SayThatTheirFolderIsNotWritable) {
  fsdp::write_durably(path(), "old");
  {
    const ReadOnlyFolder locked(folder_);
    const auto refused =
        ThrowsMessage<std::runtime_error>(HasSubstr(path().string() + ".partial cannot be created: Permission denied"));
    EXPECT_THAT([&] { fsdp::write_durably(path(), "new"); }, refused);
    EXPECT_THAT([&] { fsdp::write_safetensors(path(), {}, {}); }, refused);
  }
  EXPECT_EQ(content(), "old");
}

TEST_F(DurableFiles, AndFoldersAreRenamedDurably) {
  const auto from = folder_ / "from", to = folder_ / "to";
  std::filesystem::create_directory(from);
  fsdp::rename_durably(from, to);
  EXPECT_TRUE(std::filesystem::is_directory(to));
  EXPECT_EQ(synchronisations, 1);
  EXPECT_THAT([&] { fsdp::rename_durably(from, to); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr(from.string() + " cannot be renamed to to: No such file or directory")));
}

}  // namespace
}  // namespace ghostshard::tests
