#include "fsdp/checkpoint/files.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include "fsdp/hexadecimal.h"
#include "fsdp/regular_file.h"

namespace ghostshard::fsdp {

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
  RegularFile file(path);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  bool fine = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  std::vector<char> buffer(1 << 20);
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
