#include "accountant/ledger/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <stdexcept>

namespace ghostshard::accountant {
namespace {

using Digest = std::array<unsigned char, EVP_MAX_MD_SIZE>;

std::string hex_of(const Digest& digest, unsigned int length) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  Digest digest{};
  unsigned int length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1)
    throw std::runtime_error("SHA-256 is not available in the cryptography library");
  return hex_of(digest, length);
}

std::string hmac_sha256_hex(std::string_view key, std::string_view message) {
  Digest digest{};
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(), &length) == nullptr)
    throw std::runtime_error("HMAC-SHA256 is not available in the cryptography library");
  return hex_of(digest, length);
}

}  // namespace ghostshard::accountant
