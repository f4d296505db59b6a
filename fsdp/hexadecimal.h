// Bytes as text, two lower-case digits each.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ghostshard::fsdp {

inline std::string hexadecimal(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace ghostshard::fsdp
