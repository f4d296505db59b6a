// Files that must be on the disk when a call returns (POSIX). Calls that a signal interrupts (EINTR) are repeated.
// Every failure is a std::runtime_error with the operation, the path and the system's reason, but for a path that
// cannot be (open_file), which is the caller's mistake.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace ghostshard::accountant {

// An open file descriptor that closes itself.
class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int value = -1) : value_(value) {}
  OwnedDescriptor(OwnedDescriptor&& other) noexcept;
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;
  ~OwnedDescriptor();
  int get() const { return value_; }

 private:
  int value_;
};

[[noreturn]] void throw_system_error(const char* operation, const std::filesystem::path& path);

// Creates with mode 0644. std::invalid_argument with the system's reason for a path that is not there or may not be
// used that way, as fsdp/failure.cpp tells them apart; and for a pipe, a socket or a device (and for a folder without
// O_DIRECTORY): its bytes would be waited for, or would never end.
OwnedDescriptor open_file(const std::filesystem::path& path, int flags);
struct stat status_of(int descriptor, const std::filesystem::path& path);  // fstat
void write_all(int descriptor, std::string_view bytes, const std::filesystem::path& path);
// The whole content, from the beginning, wherever the descriptor stands. std::invalid_argument for more than 4 GiB.
std::string read_all(int descriptor, const std::filesystem::path& path);
// The content of a file that `option` names. std::invalid_argument unless it is a regular file, can be read, and holds
// at most `most_bytes`.
std::string read_named(const std::string& option, const std::filesystem::path& path, size_t most_bytes);
// fsync. It is not repeated on EIO: after a failed fsync the kernel may have dropped the pages.
void sync_file(int descriptor, const std::filesystem::path& path);
// Makes the creation or renaming of `path` itself durable, by fsync of its folder.
void sync_parent_directory(const std::filesystem::path& path);

// The text of a JSON value that reads back as exactly this value. Throws std::invalid_argument if there is none: NaN
// and infinity would silently become null, and text that is not UTF-8 cannot be written. `what` names the value in the
// message.
std::string exact_json_text(const nlohmann::json& json, const std::string& what, int indent = -1);

}  // namespace ghostshard::accountant
