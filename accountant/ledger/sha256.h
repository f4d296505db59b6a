// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), by OpenSSL.
#pragma once

#include <string>
#include <string_view>

namespace ghostshard::accountant {

// Lower-case hex of the digest of exactly these bytes. Both throw std::runtime_error if the library refuses.
std::string sha256_hex(std::string_view bytes);
std::string hmac_sha256_hex(std::string_view key, std::string_view message);

}  // namespace ghostshard::accountant
