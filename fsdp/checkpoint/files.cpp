#include "fsdp/checkpoint/files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "fsdp/hexadecimal.h"

namespace ghostshard::fsdp {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw std::runtime_error(path.string() + " " + what + ": " + std::generic_category().message(errno));
}

class FileToRead {
 public:
  explicit FileToRead(const std::filesystem::path& path)
      : path_(path), value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) fail(path_, "cannot be opened");
  }
  ~FileToRead() { ::close(value_); }
  FileToRead(const FileToRead&) = delete;
  FileToRead& operator=(const FileToRead&) = delete;

  // The number of bytes read into the buffer; 0 at the end of the file.
  size_t read(std::span<unsigned char> buffer) const {
    ssize_t got = -1;
    do got = ::read(value_, buffer.data(), buffer.size());
    while (got < 0 && errno == EINTR);
    if (got < 0) fail(path_, "cannot be read");
    return static_cast<size_t>(got);
  }

 private:
  const std::filesystem::path& path_;
  int value_;
};

}  // namespace

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%012lld", static_cast<long long>(step));
  return folder / name;
}

std::string rank_file_name(int64_t rank, int64_t world_size) {
  char name[64];
  std::snprintf(name, sizeof name, "rank-%05lld-of-%05lld.safetensors", static_cast<long long>(rank),
                static_cast<long long>(world_size));
  return name;
}

std::string sha256_of_file(const std::filesystem::path& path) {
  const FileToRead file(path);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  bool fine = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  std::vector<unsigned char> buffer(1 << 20);
  while (fine) {
    const size_t got = file.read(buffer);
    if (got == 0) break;
    fine = EVP_DigestUpdate(context.get(), buffer.data(), got) == 1;
  }
  std::array<unsigned char, 32> digest{};
  if (!fine || EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1) {
    throw std::runtime_error("SHA-256 of " + path.string() + " failed");
  }
  return hexadecimal(digest);
}

}  // namespace ghostshard::fsdp
