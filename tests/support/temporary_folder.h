// A folder that exists as long as the object does.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace ghostshard::tests {

class TemporaryFolder {
 public:
  // Throws std::system_error if no folder can be made.
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ghostshard-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // a folder that cannot be removed fails no test
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace ghostshard::tests
