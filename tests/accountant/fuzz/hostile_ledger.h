// What the targets of libFuzzer share: a ledger as a file in memory, whose chain may be mended.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "accountant/ledger/sha256.h"

namespace ghostshard::accountant {

class FileInMemory {
 public:
  FileInMemory() : descriptor_(::memfd_create("fuzz", 0)) {
    if (descriptor_ < 0) std::abort();
  }
  std::filesystem::path holding(std::string_view bytes) const {
    if (::ftruncate(descriptor_, 0) != 0) std::abort();
    if (::pwrite(descriptor_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
    return "/proc/self/fd/" + std::to_string(descriptor_);
  }

 private:
  int descriptor_;
};

// The lines, each with the hash of the one before it: changes then reach what is behind the chain.
inline std::string rechained(std::string_view text) {
  constexpr std::string_view kField = "\"previous\":\"";
  constexpr size_t kHash = 64;
  std::string all;
  std::string previous(kHash, '0');
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (const size_t at = line.find(kField); at != std::string::npos && line.size() >= at + kField.size() + kHash)
      line.replace(at + kField.size(), kHash, previous);
    previous = sha256_hex(line);
    all += line;
    if (end != std::string_view::npos) all += '\n';
  }
  return all;
}

}  // namespace ghostshard::accountant
