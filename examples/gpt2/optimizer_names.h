// The values of --optimizer.
#pragma once

#include <string>
#include <vector>

namespace ghostshard::gpt2 {

inline constexpr const char* kAdamW = "adamw";
inline constexpr const char* kEightBits = "adamw8bit";
inline constexpr const char* kSixteenBits = "adamw16bit";
inline constexpr const char* kMuon = "muon";
inline constexpr const char* kShampoo = "shampoo";
inline constexpr const char* kSoap = "soap";
inline constexpr const char* kSgd = "sgd";

inline std::vector<std::string> optimizer_names() {
  return {kAdamW, kEightBits, kSixteenBits, kMuon, kShampoo, kSoap, kSgd};
}

}  // namespace ghostshard::gpt2
