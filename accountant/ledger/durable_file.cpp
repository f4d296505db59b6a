#include "accountant/ledger/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace ghostshard::accountant {
namespace {

// Ten million releases; memory holds it, also beside what is read from it.
constexpr int64_t kMostBytes = int64_t{4} << 30;

[[noreturn]] void refuse_irregular(const std::filesystem::path& path) {
  throw std::invalid_argument(path.string() + " must be a regular file, it is a folder, a pipe, a socket or a device");
}

// What the system says of a path that was asked for and cannot be (fsdp/failure.cpp and
// bindings/python/ghostshard/errors.py have the like). Not of a disk, or of a process with too many files.
bool is_of_the_path(int reason) {
  constexpr std::array kOfThePath = {ENOENT, ENOTDIR, EACCES, EPERM, EROFS, ELOOP, ENAMETOOLONG};
  return std::find(kOfThePath.begin(), kOfThePath.end(), reason) != kOfThePath.end();
}

std::string sentence_of(const char* operation, const std::filesystem::path& path, int reason) {
  return std::string("cannot ") + operation + ' ' + path.string() + ": " + std::generic_category().message(reason);
}

}  // namespace

struct stat status_of(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_system_error("look at", path);
  return status;
}

OwnedDescriptor::OwnedDescriptor(OwnedDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  OwnedDescriptor moved(std::move(other));  // what this held is closed at the end of this scope
  std::swap(value_, moved.value_);
  return *this;
}

OwnedDescriptor::~OwnedDescriptor() {
  if (value_ >= 0) ::close(value_);
}

void throw_system_error(const char* operation, const std::filesystem::path& path) {
  throw std::runtime_error(sentence_of(operation, path, errno));
}

OwnedDescriptor open_file(const std::filesystem::path& path, int flags) {
  int descriptor = -1;
  // Without O_NONBLOCK the opening of a pipe waits for its other end.
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0 && (errno == ENXIO || errno == EISDIR)) refuse_irregular(path);
  const char* const operation = (flags & O_CREAT) != 0 ? "create" : "open";
  if (descriptor < 0 && is_of_the_path(errno)) throw std::invalid_argument(sentence_of(operation, path, errno));
  if (descriptor < 0) throw_system_error(operation, path);
  OwnedDescriptor owned(descriptor);
  if ((flags & O_DIRECTORY) == 0 && !S_ISREG(status_of(descriptor, path).st_mode)) refuse_irregular(path);
  return owned;
}

void write_all(int descriptor, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_system_error("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

std::string read_all(int descriptor, const std::filesystem::path& path) {
  if (const int64_t size = status_of(descriptor, path).st_size; size > kMostBytes)
    throw std::invalid_argument(path.string() + " must hold at most " + std::to_string(kMostBytes) + " bytes, has " +
                                std::to_string(size));
  std::string bytes;
  std::array<char, 1 << 16> buffer{};
  for (off_t offset = 0;;) {
    const ssize_t got = ::pread(descriptor, buffer.data(), buffer.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error("read", path);
    if (got == 0) return bytes;
    bytes.append(buffer.data(), static_cast<size_t>(got));
    offset += got;
  }
}

std::string read_named(const std::string& option, const std::filesystem::path& path, size_t most_bytes) {
  OwnedDescriptor file;
  try {
    file = open_file(path, O_RDONLY);
  } catch (const std::exception& error) {
    throw std::invalid_argument(option + " must name a file that can be read: " + error.what());
  }
  if (const auto bytes = static_cast<uint64_t>(status_of(file.get(), path).st_size); bytes > most_bytes)
    throw std::invalid_argument(option + " must name a file of at most " + std::to_string(most_bytes) + " bytes, " +
                                path.string() + " has " + std::to_string(bytes));
  return read_all(file.get(), path);
}

void sync_file(int descriptor, const std::filesystem::path& path) {
  // Not retried on EIO: after a failed fsync the kernel may have dropped the pages and report success the
  // next time.
  while (::fsync(descriptor) != 0)
    if (errno != EINTR) throw_system_error("sync", path);
}

void sync_parent_directory(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  sync_file(open_file(parent, O_RDONLY | O_DIRECTORY).get(), parent);
}

std::string exact_json_text(const nlohmann::json& json, const std::string& what, int indent) {
  std::string text;
  try {
    text = json.dump(indent);
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(what + " must be valid UTF-8: " + error.what());
  }
  if (nlohmann::json::parse(text) != json)
    throw std::invalid_argument(what + " must hold finite numbers only, got a NaN or an infinity in " + text);
  return text;
}

}  // namespace ghostshard::accountant
