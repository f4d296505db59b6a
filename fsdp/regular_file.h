// Files that a caller names, opened to be read (POSIX). A pipe, a socket or a device is refused at once: its bytes
// would be waited for, or would never end. A file that grows meanwhile is read as far as it went at its opening.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace ghostshard::fsdp {

class RegularFile {
 public:
  // std::invalid_argument "PATH cannot be read: REASON", with the system's reason, or "PATH must be a regular file, it
  // is a pipe" (a folder, a socket, a device).
  explicit RegularFile(const std::filesystem::path& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const { return descriptor_; }
  // Its size at the opening.
  uint64_t bytes() const { return bytes_; }
  // The number of bytes read into the buffer; 0 at the end. std::runtime_error "PATH cannot be read: REASON".
  size_t read(std::span<char> buffer);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t bytes_ = 0, left_ = 0;
};

// Far more than a config.json, a recipe or a list of weights has.
inline constexpr uint64_t kMostBytesOfText = uint64_t{64} << 20;

// The file's content. Throws what RegularFile throws, and std::invalid_argument "PATH must hold at most N bytes, has
// M".
std::string read_text(const std::filesystem::path& path, uint64_t most_bytes = kMostBytesOfText);

}  // namespace ghostshard::fsdp
