// Keys that tests choose, so that noise and draws repeat.
#pragma once

#include <array>
#include <cstdint>

#include "dp/mechanism/run_key.h"

namespace ghostshard::tests {

// The key whose first byte is given and whose others are zero, of the run whose id is zero.
inline dp::RunKey key_of(uint8_t first_byte) {
  std::array<uint8_t, 32> bytes{};
  bytes[0] = first_byte;
  return dp::RunKey::from_bytes(bytes, dp::RunId{});
}

}  // namespace ghostshard::tests
