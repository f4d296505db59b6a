// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <string>
#include <string_view>

namespace ghostshard::accountant {

// Lower-case hex of the digest of exactly these bytes. Throws std::runtime_error if the library refuses.
std::string sha256_hex(std::string_view bytes);

}  // namespace ghostshard::accountant
