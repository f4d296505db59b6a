#include "fsdp/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace ghostshard::fsdp {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class RegularFiles : public testing::Test {
 protected:
  void write(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }
  void expect_refused(const std::filesystem::path& path, const std::string& reason) const {
    EXPECT_THAT([&] { (void)read_text(path); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(path.string() + reason)));
  }

  const tests::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "file";
};

TEST_F(RegularFiles, HaveTheirContent) {
  write(std::string("a\0b\n", 4));
  EXPECT_EQ(read_text(path_), std::string("a\0b\n", 4));
  std::filesystem::create_symlink(path_, folder_.path() / "link");
  EXPECT_EQ(read_text(folder_.path() / "link").size(), 4U);
}

TEST_F(RegularFiles, AreReadAsFarAsTheyWentAtTheOpening) {
  write("abc");
  RegularFile file(path_);
  write("def");
  std::array<char, 2> buffer{};
  EXPECT_EQ(file.bytes(), 3U);
  EXPECT_EQ(file.read(buffer), 2U);
  EXPECT_EQ(file.read(buffer), 1U);
  EXPECT_EQ(buffer[0], 'c');
  EXPECT_EQ(file.read(buffer), 0U);
}

TEST_F(RegularFiles, MayHoldAsManyBytesAsTheCallerTakes) {
  write("abc");
  EXPECT_EQ(read_text(path_, 3), "abc");
  EXPECT_THAT([&] { (void)read_text(path_, 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("must hold at most 2 bytes, has 3")));
}

// None of these waits: a pipe that nobody writes into would hold the caller for ever.
TEST_F(RegularFiles, AreNoPipesSocketsDevicesOrFolders) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_refused(path_, " must be a regular file, it is a pipe");
  expect_refused(folder_.path(), " must be a regular file, it is a folder");
  expect_refused("/dev/zero", " must be a regular file, it is a device");
  expect_refused(folder_.path() / "nothing", " cannot be read: No such file or directory");
  std::filesystem::create_symlink("loop", folder_.path() / "loop");
  expect_refused(folder_.path() / "loop", " cannot be read: Too many levels of symbolic links");
}

TEST_F(RegularFiles, AreNoSockets) {
  const int made = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path_.string().size(), sizeof address.sun_path);
  path_.string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(made);
  expect_refused(path_, " must be a regular file, it is a socket");
}

}  // namespace
}  // namespace ghostshard::fsdp
