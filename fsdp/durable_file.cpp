#include "fsdp/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace ghostshard::fsdp {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw std::runtime_error(path.string() + " " + what + ": " + std::generic_category().message(errno));
}

// call() until no signal interrupts it; the system's calls return -1 with errno.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// A move would put a file in the place of a device, for all who use it, if root asks for that.
void refuse_what_is_no_file(const std::filesystem::path& path) {
  std::error_code unreadable;  // a place that cannot be looked at is the opening's to report
  const auto found = std::filesystem::status(path, unreadable);
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found)) {
    throw std::runtime_error(path.string() +
                             " cannot be written: it is a folder, a device, a pipe or a socket, not a regular file");
  }
}

int open_for_writing(const std::filesystem::path& path) {
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); });
  if (descriptor < 0) fail(path, "cannot be created");
  return descriptor;
}

void synchronise(int descriptor, const std::filesystem::path& path) {
  if (uninterrupted([&] { return ::fsync(descriptor); }) != 0) fail(path, "cannot be synchronised");
}

void synchronise_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int descriptor = uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) fail(folder, "cannot be opened");
  try {
    synchronise(descriptor, folder);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  ::close(descriptor);
}

void rename_to(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (uninterrupted([&] { return std::rename(from.c_str(), to.c_str()); }) != 0) {
    fail(from, ("cannot be renamed to " + to.filename().string()).c_str());
  }
}

std::filesystem::path partial_of(std::filesystem::path path) { return path += ".partial"; }

}  // namespace

DurableFile::DurableFile(const std::filesystem::path& path) : path_(path), partial_(partial_of(path)), descriptor_(-1) {
  refuse_what_is_no_file(path);
  descriptor_ = open_for_writing(partial_);
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void DurableFile::write(const void* bytes, size_t count) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = uninterrupted([&] { return ::write(descriptor_, from, count); });
    if (written < 0) fail(partial_, "cannot be written");
    from += written;
    count -= static_cast<size_t>(written);
  }
}

void DurableFile::commit() {
  synchronise(descriptor_, partial_);
  rename_to(partial_, path_);
  // fsync has reported every error of writing, so nothing depends on how close() ends.
  ::close(std::exchange(descriptor_, -1));
  synchronise_folder_of(path_);
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  rename_to(from, to);
  synchronise_folder_of(to);
}

}  // namespace ghostshard::fsdp
