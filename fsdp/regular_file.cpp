#include "fsdp/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace ghostshard::fsdp {
namespace {

std::string cannot_be_read(const std::filesystem::path& path) {
  return path.string() + " cannot be read: " + std::generic_category().message(errno);
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

}  // namespace

RegularFile::RegularFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK the opening of a pipe waits for somebody who writes into it.
  do descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  while (descriptor_ < 0 && errno == EINTR);
  struct stat status {};
  if (descriptor_ < 0 && errno != ENXIO) throw std::invalid_argument(cannot_be_read(path));
  // A socket cannot be opened, only looked at.
  const bool known = (descriptor_ < 0 ? ::stat(path.c_str(), &status) : ::fstat(descriptor_, &status)) == 0;
  const std::string mistake = !known ? cannot_be_read(path)
                              : descriptor_ >= 0 && S_ISREG(status.st_mode)
                                  ? ""
                                  : path.string() + " must be a regular file, it is " + kind_of(status.st_mode);
  if (!mistake.empty()) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw std::invalid_argument(mistake);
  }
  bytes_ = left_ = static_cast<uint64_t>(status.st_size);
}

RegularFile::~RegularFile() { ::close(descriptor_); }

size_t RegularFile::read(std::span<char> buffer) {
  const size_t wanted = std::min<uint64_t>(buffer.size(), left_);
  ssize_t got = -1;
  do got = ::read(descriptor_, buffer.data(), wanted);
  while (got < 0 && errno == EINTR);
  if (got < 0) throw std::runtime_error(cannot_be_read(path_));
  left_ -= static_cast<uint64_t>(got);
  return static_cast<size_t>(got);
}

std::string read_text(const std::filesystem::path& path, uint64_t most_bytes) {
  RegularFile file(path);
  if (file.bytes() > most_bytes) {
    throw std::invalid_argument(path.string() + " must hold at most " + std::to_string(most_bytes) + " bytes, has " +
                                std::to_string(file.bytes()));
  }
  std::string text(file.bytes(), '\0');
  size_t done = 0;
  for (size_t got = 1; got > 0 && done < text.size(); done += got) got = file.read(std::span(text).subspan(done));
  text.resize(done);  // less if it was cut meanwhile
  return text;
}

}  // namespace ghostshard::fsdp
